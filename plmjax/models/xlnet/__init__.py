"""XLNet: its attention, its model and its heads."""
