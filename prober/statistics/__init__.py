"""Statistics: quantiles with confidence intervals, sequential and paired tests."""
