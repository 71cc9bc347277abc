"""Files of labelled text."""
