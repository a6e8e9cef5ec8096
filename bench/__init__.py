"""Measured goals: each program prints one JSON object with a `goals` list; `python -m bench` runs them all."""
