"""Prometheus-native continuous SLO prober for LLM serving."""

__version__ = "0.6.0"
