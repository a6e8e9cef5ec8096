"""Measurements with a beginning and an end, as plans and what their results say; who sends the probes is elsewhere."""
