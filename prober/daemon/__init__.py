"""The daemon: creates and connects all parts, reloads the configuration, and saves the state."""
