"""Place of probers and targets, by which dashboards select: cluster, namespace and job.

The scraper or collector of the series adds these labels; `cluster` may also be a label that the configuration gives a target.
Targets of two clusters may have one name, and most panels sum over probers, so a dashboard shows one cluster at a time. Where no
series has the label, Grafana chooses the empty value, which selects them all.
"""

import re
from typing import Any

from prober.exposition.dashboards.style import Json

PLACE = ("cluster", "namespace", "job")  # variables and labels; each is chosen within the ones before it
_SELECTOR = re.compile(r'([\w:]*)\{((?:[^{}"]|"(?:[^"\\]|\\.)*")+)\}')
_TARGET = re.compile(r"\btarget(?:=|!=)")
_OF_TARGET = ('cluster="$cluster"', 'namespace=~"$namespace"', 'job=~"$job"')
# A prober has no label that its targets have.
_OF_PROBER = ('cluster=~"$cluster|"', *_OF_TARGET[1:])
# Rules drop these labels unless `prober rules --group-label` names them: what has none is of every place.
_OF_RULES = ('cluster=~"$cluster|"', 'namespace=~"$namespace|"', 'job=~"$job|"')
_OF_OTHERS = _OF_TARGET[:1]  # of an exporter beside the engine: it has a namespace and a job of its own


def in_place(expr: str) -> str:
    """`expr` of the chosen place only."""

    def selected(match: re.Match[str]) -> str:
        name, matchers = match[1], match[2]
        if ":" in name or name in ("ALERTS", "ALERTS_FOR_STATE") or (not name and ":" in matchers):
            places: tuple[str, ...] = _OF_RULES
        elif name.startswith("llmslo_"):
            places = _OF_TARGET if _TARGET.search(matchers) else _OF_PROBER
        else:
            places = _OF_OTHERS
        return f"{name}{{{','.join((matchers, *places))}}}"

    return _SELECTOR.sub(selected, expr)


def placed_queries(document: Json) -> Json:
    """`document`, a part of a dashboard, with every expression of the chosen place."""
    return {key: _placed(key, value) for key, value in document.items()}


def _placed(key: str, value: Any) -> Any:
    if isinstance(value, dict):
        return placed_queries(value)
    if isinstance(value, list):
        return [_placed("", part) for part in value]
    return in_place(value) if key == "expr" else value
