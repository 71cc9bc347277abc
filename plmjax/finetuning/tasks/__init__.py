"""Downstream tasks, one kind a file: their examples, and the objective that trains and judges them."""
