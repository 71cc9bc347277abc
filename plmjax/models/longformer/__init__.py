"""Longformer: its attention, its encoder with heads, its encoder-decoder and its language model of characters."""
