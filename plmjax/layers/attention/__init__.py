"""Attention: its heads, its backends, relative positions, and the keys and values that a decoder keeps."""
