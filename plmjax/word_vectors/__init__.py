"""Static word vectors, one vector a word whatever stands around it: what is near, and scores on published lists."""
