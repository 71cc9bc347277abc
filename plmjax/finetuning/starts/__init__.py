"""What fine-tuning starts with besides a whole checkpoint: its parts, other dropouts, further tokens."""
