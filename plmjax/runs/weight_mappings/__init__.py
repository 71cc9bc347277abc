"""Weight mappings for fine-tuning: parts of a checkpoint, other dropouts, further tokens."""
