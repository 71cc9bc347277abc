"""Checkpoints: saved, read, compared, averaged, and what a run begins with."""
