"""Regressions of checked answers."""
