"""Compressed models: systems with layers of a lower rank or of different sizes.

`configs.py` declares them. Their modules are those of the original system except for the layers: `low_rank.py` computes
products of two matrices, `pruned_layers.py` layers of different sizes.
"""
