"""Pretraining from text to checkpoint, and the summary of a finished run."""
