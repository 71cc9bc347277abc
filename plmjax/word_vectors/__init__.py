"""Static word vectors, one vector per word in any context: nearest neighbors, and scores on published word lists."""
