"""Reformer: attention in chunks, by hashing or by position, and its reversible layers."""
