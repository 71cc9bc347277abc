"""Use of a checkpoint: evaluation, vectors, predictions, and the likeliest tokens in place of [MASK].

A checkpoint has its model's config and its tokenizer. Rows are padded to one of a few lengths, and a fixed number of
rows is computed at once, so that the result of a text does not depend on the other texts.
"""
