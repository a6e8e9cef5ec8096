"""Reads the metrics pages of all engines into one set of signals."""
