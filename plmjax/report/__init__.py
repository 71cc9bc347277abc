"""The report of runs: one HTML page with their curves and results."""
