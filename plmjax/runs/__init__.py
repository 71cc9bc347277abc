"""Runs: what a run starts from, its settings, its folder and its inputs; pretraining and fine-tuning end to end."""
