"""Downstream tasks: heads, file formats and metrics."""
