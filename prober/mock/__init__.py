"""A mock engine with an OpenAI streaming API. It records the true times that tests of the prober compare with."""
