"""A simulated engine behind an OpenAI streaming server: the known truth that the prober is measured against."""
