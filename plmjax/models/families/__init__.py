"""Base classes of several systems."""
