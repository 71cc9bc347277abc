"""Metrics of predictions and of generated texts."""
