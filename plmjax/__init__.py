"""Pretrained language models in JAX and Flax, from raw text to a trained, resumed, planned and exported model."""

__version__ = "0.1.0"
