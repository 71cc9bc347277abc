"""The check of a machine or slice before a run: the same functions as in a training, beside a plainer way."""
