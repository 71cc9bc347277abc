"""Cross-view training of one or more tasks."""
