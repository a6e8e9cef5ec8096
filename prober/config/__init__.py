"""Configuration: YAML text becomes frozen models, or all its errors are reported at once, each with its path."""
