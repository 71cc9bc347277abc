"""Text to sentences to tokens to a prepared dataset to batches; the only room that imports TensorFlow."""
