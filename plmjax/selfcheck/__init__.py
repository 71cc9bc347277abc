"""The check of a machine or slice before a run: parts of training are compared with simpler implementations."""
