"""A mock engine with an OpenAI streaming API, whose recorded truth the prober is tested against."""
