"""What the rooms ask of each other, so that a new system brings its own in its own file."""
