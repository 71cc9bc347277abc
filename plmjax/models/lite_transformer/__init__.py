"""Lite Transformer: its two branches, the encoder-decoder and the language model."""
