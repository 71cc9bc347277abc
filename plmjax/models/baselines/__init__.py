"""Models without a paper of their own, which others are compared with."""
