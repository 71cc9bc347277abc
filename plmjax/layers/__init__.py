"""Layers that several systems share and that belong to no single system, one idea per file."""
