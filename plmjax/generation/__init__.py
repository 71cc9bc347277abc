"""Text generation: greedy, sampling or beam search, with a cache, in one compiled loop."""
