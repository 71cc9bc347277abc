"""Weight mappings: how a run initializes its parameters from a checkpoint of another model."""
