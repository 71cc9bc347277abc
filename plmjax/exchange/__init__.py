"""Run directories from checkpoints of other libraries, and back."""
