"""Text that a model writes: greedily, by sampling or by beam search, with a cache, in one compiled loop."""
