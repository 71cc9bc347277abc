"""Import and export of other libraries' checkpoints. One file for each library or system."""
