"""Due times, lengths and prompts of requests, without clock and hidden randomness."""
