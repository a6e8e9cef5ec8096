"""Prometheus exposition: metric families, text, OpenMetrics and protobuf writers, and a parser for other pages."""
