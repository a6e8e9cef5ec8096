"""Measures one request: from timestamped bytes to a timeline, an outcome and SLO events. No I/O."""
