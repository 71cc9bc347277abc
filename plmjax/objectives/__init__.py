"""Pretraining tasks: how a batch is corrupted and what is lost, one file per task."""
