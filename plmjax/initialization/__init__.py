"""The initial parameters of a run: random values, those of a checkpoint, or word vectors."""
