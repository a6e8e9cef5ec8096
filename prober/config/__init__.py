"""Configuration: turns YAML text into frozen models, or reports all its errors at once, each with its path."""
