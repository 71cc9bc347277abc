"""What several systems really share, one idea per file."""
