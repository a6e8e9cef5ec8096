"""Run every benchmark, one after another; exit 1 if one could not run. A goal missed is reported, not an error.

Two run only when they are named: `image` needs root and builds for minutes, `soak` takes its hour.
"""

import subprocess
import sys

PROGRAMS = (
    "accuracy",
    "footprint",
    "scrape",
    "parse",
    "disturbance",
    "page",
    "simulation",
    "drift",
    "diagnosis",
    "deciding",
    "knee",
    "sizing",
    "replicas",
    "discovery",
    "web",
    "faults",
    "kill",
    "sizing",
    "fuzz",
)


def main() -> None:
    """Run those named on the command line, or all."""
    failed = [
        name
        for name in sys.argv[1:] or PROGRAMS
        if subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False).returncode
    ]
    sys.exit(f"could not run: {', '.join(failed)}" if failed else 0)


main()
