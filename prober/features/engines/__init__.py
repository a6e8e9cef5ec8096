"""Metrics pages of engines, read into one vocabulary."""
