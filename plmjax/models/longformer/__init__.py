"""Longformer: its attention, its encoder and its heads."""
