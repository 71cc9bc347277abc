"""Ahead-of-time compilation of a train step for a TPU slice without its hardware: estimates, search, report."""
