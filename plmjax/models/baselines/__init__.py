"""Models without a paper of their own, for comparison with other models."""
