"""LSTMs and GRUs: one scan over time."""
