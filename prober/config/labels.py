"""Labels that users give their targets: on every series about a target, and on its alerts."""

import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

from prober.config.fields import Mistakes
from prober.measure.names import name_problem

MAX_LABELS = 10
MAX_VALUE_CHARS = 128
LABEL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
# Of the prober's series, of its rules, and of every alert.
OWN_LABELS = frozenset(
    (
        *("alertname", "alertstate", "bound", "budget", "cause", "check", "direction", "discovery", "engine", "event"),
        *("gpu", "kind", "le", "load", "long", "model", "name", "percentile", "phase", "point"),
        *("quantile", "reason", "regime", "severity", "shard", "shards", "short", "signal", "slo", "source", "stage"),
        *("state", "target", "task", "unit", "uuid", "vantage", "verdict", "version", "what", "window"),
        "workload",
    )
)
# Prometheus and its operator set these to those of the prober, and rename others of the same name to exported_….
SCRAPE_LABELS = frozenset(("container", "endpoint", "instance", "job", "namespace", "pod", "prometheus", "service"))


def label_name_problem(name: str) -> str:
    """Why a target cannot have a label of this name; empty if it can."""
    if not LABEL_NAME.fullmatch(name) or name.startswith("__"):
        return f"{name[:80]!r} is no name of a label: write up to 64 letters, digits and _, such as team"
    if name in OWN_LABELS:
        return f"{name!r} is a label of the prober itself; choose another name"
    if name in SCRAPE_LABELS:
        return f"{name!r} is set by Prometheus, to that of the prober; choose another name, such as target_{name}"
    return ""


def _checked(labels: Mapping[str, str]) -> dict[str, str]:
    with Mistakes() as mistakes:
        if len(labels) > MAX_LABELS:
            mistakes.add(
                "", f"{len(labels)} labels; use {MAX_LABELS} or fewer, as every series about the target has them"
            )
        for name, value in labels.items():
            if problem := label_name_problem(name) or name_problem(value, MAX_VALUE_CHARS):
                mistakes.add(f".{name[:80]}", problem)
    return dict(labels)


UserLabels = Annotated[dict[str, str], AfterValidator(_checked)]
