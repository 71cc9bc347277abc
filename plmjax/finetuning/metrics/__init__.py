"""Metrics of predictions and of written texts."""
