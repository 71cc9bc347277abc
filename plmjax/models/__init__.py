"""The published systems, one file each, in the order of their papers."""
