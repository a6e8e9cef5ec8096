"""Metrics pages of engines, read into one set of signals."""
