"""What several systems really share, one idea a file."""
