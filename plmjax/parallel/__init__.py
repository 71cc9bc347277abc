"""Meshes, logical axes, TPU topologies, ahead-of-time compilation and the plan made from it."""
