"""Examples as batches: packed rows, mixtures and groups."""
