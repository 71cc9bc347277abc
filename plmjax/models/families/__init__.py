"""What several systems inherit and none of them owns."""
