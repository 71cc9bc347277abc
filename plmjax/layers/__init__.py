"""What several systems share and no system owns, one idea per file."""
