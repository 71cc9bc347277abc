"""Meshes, shardings, TPU topologies, and the hosts of a run, which join, agree, detect failures and stop."""
