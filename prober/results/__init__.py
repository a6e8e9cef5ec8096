"""The result of an experiment as data, and its file."""
