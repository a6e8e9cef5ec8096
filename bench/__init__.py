"""Measured goals: each program prints one JSON object with a `goals` list; `python -m bench` runs them all.

Each part of a program is a line of JSON on standard error as soon as it is measured (`report.part`), so that a failure loses nothing.
"""

import os
from pathlib import Path

# What `make tools` fetches is used however a program is started.
os.environ["PATH"] = f"{Path(__file__).parents[1] / '.tools/usr/bin'}:{os.environ['PATH']}"
