"""Starts of fine-tuning other than an unchanged checkpoint: parts of it, other dropouts, further tokens."""
