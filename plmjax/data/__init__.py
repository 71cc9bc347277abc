"""Raw text to sentences, tokens, a prepared dataset, and batches. TensorFlow is imported here alone."""
