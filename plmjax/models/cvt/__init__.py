"""Cross-view training: the encoder, and its modules for parsing and translation."""
