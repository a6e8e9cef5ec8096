"""What probing may cost in 24 hours."""
