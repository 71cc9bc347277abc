"""Meshes, shardings, TPU topologies, and the hosts of a run: how they join, agree, detect failures and stop."""
