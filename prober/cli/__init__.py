"""The command line, a file a command; the only place that prints."""
