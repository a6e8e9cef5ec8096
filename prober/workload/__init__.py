"""Due times, lengths and prompts of requests, computed without clock and hidden randomness."""
