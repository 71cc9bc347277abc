"""LSTMs and GRUs, computed by one scan over time."""
