"""Pruning: weights are set to 0, and heads and features are removed."""
