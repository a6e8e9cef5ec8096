"""The prober beside the field: clock, truth, continuous probing and searches for the knee, in one run with a bounded duration.

    python -m bench.rivals [--parts clock,truth,continuous] [--minutes 12] [--folder build/rivals] [--page FILE]
    python -m bench.rivals --parts knee --minutes 120     three engines at a time, up to half an hour each

Rivals are installed first, into environments of their own under --folder (not counted in --minutes). A part for which no time is left
is left out, and the result says so. --page writes the tables of the documentation.
"""

import argparse
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from bench.report import require, show
from bench.rivals import clock, continuous, knee, truth
from bench.rivals.install import VERSIONS, install
from bench.rivals.page import page

PARTS: dict[str, Any] = {"clock": clock, "truth": truth, "continuous": continuous, "knee": knee}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="clock,truth,continuous", help="parts, in this order")
    parser.add_argument("--minutes", type=float, default=12.0, help="of all parts together; the first three take ten")
    parser.add_argument("--folder", type=Path, default=Path("build/rivals"), help="of the rivals")
    parser.add_argument("--page", type=Path, help="write the tables here")
    options = parser.parse_args()
    if "continuous" in options.parts:
        require("prometheus")
    clients = options.folder.resolve()
    not_installed = install(clients)
    deadline_s = time.monotonic() + 60 * options.minutes
    found, goals, problems = {}, [], {}
    for name in options.parts.split(","):
        print(f"{name}: {max(0.0, deadline_s - time.monotonic()) / 60:.1f} minutes are left", file=sys.stderr)
        try:
            found[name] = PARTS[name].play(clients, deadline_s)
            goals += PARTS[name].goals(found[name])
        except Exception as problem:  # the others are worth having without it
            traceback.print_exc()
            problems[name] = repr(problem)
    if options.page:
        options.page.write_text(page(found, goals))
    show("rivals", goals, versions=VERSIONS, not_installed=not_installed, problems=problems, **found)
    if problems:
        sys.exit(f"failed: {', '.join(problems)}")


if __name__ == "__main__":
    main()
