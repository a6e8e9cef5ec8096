"""The prober's pages and its API."""
