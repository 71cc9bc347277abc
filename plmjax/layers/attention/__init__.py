"""Attention: its heads, its backends, relative positions, and the cache of a decoder."""
