"""A mock engine with an OpenAI streaming API. It records the true times, with which tests compare the prober's."""
