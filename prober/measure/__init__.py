"""Measurement of one request: timestamped bytes become a timeline, an outcome and SLO events. Pure, no I/O."""
