"""CoVe, and the biattentive classification network of its paper."""
