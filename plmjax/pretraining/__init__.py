"""Pretraining end to end, and what a finished run shows."""
