"""Checkpoints of other libraries in and out, one file a library or system."""
