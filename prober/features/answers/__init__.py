"""Detects that checked answers are wrong more often than before."""
