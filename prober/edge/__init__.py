"""The outside world, one system a file. Thin: what anything means is decided in the ranks below."""
