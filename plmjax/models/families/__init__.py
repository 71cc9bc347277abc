"""Parts that several systems inherit and that belong to no single system."""
