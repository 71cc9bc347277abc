"""Starts of fine-tuning other than the whole checkpoint as it is: parts of it, other dropouts, further tokens."""
