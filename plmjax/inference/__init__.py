"""Use of a checkpoint: evaluation, embeddings, predictions, and the most likely tokens for [MASK].

A checkpoint contains its model's config and its tokenizer. Rows are padded to one of a few lengths, and every batch has
a fixed number of rows, so that the result of a text does not depend on the other texts.
"""
