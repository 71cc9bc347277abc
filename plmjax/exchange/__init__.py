"""Conversion of checkpoints of other libraries to run directories, and back."""
