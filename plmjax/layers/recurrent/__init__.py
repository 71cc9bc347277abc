"""Recurrent layers: LSTMs and GRUs, computed by one scan over time, their masks, and Luong's attention."""
