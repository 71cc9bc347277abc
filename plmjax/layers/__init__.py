"""Layers that several systems share, one idea per file."""
