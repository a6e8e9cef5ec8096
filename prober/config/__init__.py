"""Configuration: YAML text to frozen models, or all errors at once, each with its path."""
