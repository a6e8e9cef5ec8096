"""The prober beside load clients and probers of others, each in an environment of its own."""
