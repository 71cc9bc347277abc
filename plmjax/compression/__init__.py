"""Compression: smaller and faster models from trained checkpoints."""
