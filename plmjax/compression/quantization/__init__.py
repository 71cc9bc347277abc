"""Quantization: models stored and computed in int8."""
