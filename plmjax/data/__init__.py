"""Turns raw text into sentences, tokens, a prepared dataset and batches. Only this package imports TensorFlow."""
