"""The one form of a benchmark's result, and of the parts that are measured on the way to it."""

import json
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

Figures = TypeVar("Figures")


def require(*programs: str) -> None:
    """Exit if one of these programs is missing, before anything is measured."""
    if missing := [name for name in programs if shutil.which(name) is None]:
        sys.exit(f"no {', '.join(missing)} here: `make tools` fetches Prometheus; install others from the distribution")


def part(name: str, figures: Figures) -> Figures:
    """Write the figures of a part to standard error as a line of JSON: they are not lost if a later part fails. Returns them."""
    print(json.dumps({"part": name, "figures": figures}, default=str), file=sys.stderr, flush=True)
    return figures


def goal(name: str, value: float, goal: float, unit: str) -> dict[str, Any]:
    """A goal, met if `value` is at most `goal`."""
    return {"name": name, "value": round(value, 4), "goal": goal, "unit": unit, "met": value <= goal}


def percentile(values: Sequence[float], q: float) -> float:
    """The order statistic at ceil(q·n)."""
    ordered = sorted(values)
    return ordered[max(0, min(len(ordered) - 1, -(-int(q * 1000) * len(ordered) // 1000) - 1))]


def machine() -> dict[str, Any]:
    """Versions and machine that the figures depend on."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "load_1m": round(os.getloadavg()[0], 2),
    }


def show(bench: str, goals: list[dict[str, Any]], **raw: Any) -> None:
    """Print the result."""
    print(json.dumps({"bench": bench, "goals": goals, "machine": machine(), **raw}))
