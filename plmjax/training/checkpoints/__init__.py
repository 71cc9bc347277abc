"""Checkpoints: saving, reading, comparison and averaging, and the initial parameters of a run."""
