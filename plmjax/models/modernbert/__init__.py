"""ModernBERT, and the encoders that differ from it in the numbers of its config."""
