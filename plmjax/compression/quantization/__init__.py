"""Quantization: models stored and computed in integers of eight bits."""
