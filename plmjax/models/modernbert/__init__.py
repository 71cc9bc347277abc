"""ModernBERT, its decoder, and the encoders that differ from it only in the values of its config."""
