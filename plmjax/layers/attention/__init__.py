"""Attention: multi-head modules, backends, relative and rotary positions, and the key-value cache of a decoder."""
