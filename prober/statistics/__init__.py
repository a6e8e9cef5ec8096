"""What samples say, and how sure they are: quantiles with intervals, sequential and paired tests."""
