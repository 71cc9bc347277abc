"""State, step, loop, optimizers, schedules, checkpoints and metrics: the same for every system."""
