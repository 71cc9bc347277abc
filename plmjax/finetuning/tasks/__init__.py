"""Downstream tasks, one kind per file: their examples, and the objective for training and evaluation."""
