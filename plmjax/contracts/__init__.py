"""The interfaces between the rooms. With them a new system brings its own classes in its own file."""
