"""Metric families in memory, and their text for Prometheus."""
