"""Words and tokens: embeddings, characters, and scores over a vocabulary."""
