"""Plans: a run's train step compiled ahead of time for a TPU slice that is not here; estimates, search, report."""
