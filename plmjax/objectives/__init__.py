"""Pretraining objectives: the corruption of a batch and the loss, one file for each objective."""
