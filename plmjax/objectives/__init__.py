"""Pretraining tasks: how a batch is corrupted and what the loss is, one file per task."""
