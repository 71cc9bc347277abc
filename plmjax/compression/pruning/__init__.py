"""Pruning: weights that become 0, and heads and widths that are removed."""
