"""Words and tokens: their tables, their characters, and scores over a vocabulary."""
