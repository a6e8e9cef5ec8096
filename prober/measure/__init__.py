"""What bytes and times mean: one request's stamped bytes become a timeline and an outcome."""
