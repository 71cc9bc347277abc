"""Compressed models: systems of their own, with layers of a lower rank or of different sizes.

`configs.py` declares them. Their modules are those of the system that was compressed, but for the layers:
`low_rank.py` computes products of two matrices, `pruned_layers.py` layers of different sizes.
"""
