"""Meshes, shardings, TPU topologies, and the hosts of a run: joining, agreeing, watching, stopping."""
