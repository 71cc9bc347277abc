"""Runs: their start, settings, folder and inputs; pretraining and fine-tuning end to end."""
