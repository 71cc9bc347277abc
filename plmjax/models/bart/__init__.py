"""BART, and its translation model."""
