"""Quantiles with confidence intervals, sequential tests and paired tests."""
