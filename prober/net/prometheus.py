"""Queries to the Prometheus that scrapes this prober."""

import math
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import orjson

from prober.measure.payload import error_message
from prober.measure.printable import mask_secrets
from prober.net.redaction import Redactor
from prober.net.scrape import UnreadablePage, fetch

TIMEOUT_S = 20.0
MAX_RESPONSE_BYTES = 8 << 20
HOUR_S = 3600


class QueryFailed(Exception):
    """A query failed or its answer cannot be used; the message has the address and the reason."""


async def hourly_histograms(
    url: str, series: str, labels: dict[str, str], end_unix_s: float, hours: int
) -> list[tuple[float, list[tuple[float, float]]]]:
    """Cumulative histogram of each of the last `hours`, summed over replicas of the prober.

    Returns [(middle of the hour in Unix seconds, [(upper bound in seconds, number of observations up to it)])], without empty hours.
    Raises QueryFailed.
    """
    matchers = ",".join(f"{name}={_quoted(value)}" for name, value in labels.items())
    query = f"sum by (le) (increase({series}_bucket{{{matchers}}}[1h]))"
    end = end_unix_s // HOUR_S * HOUR_S
    parameters = {"query": query, "start": str(end - (hours - 1) * HOUR_S), "end": str(end), "step": str(HOUR_S)}
    buckets_by_time: dict[float, list[tuple[float, float]]] = {}
    with _read_from(url):
        for row in await _rows(url, "query_range", parameters):
            bound = float(row["metric"]["le"])
            for at, value in row["values"]:
                buckets_by_time.setdefault(float(at), []).append((bound, float(value)))
    histograms = [(at - HOUR_S / 2, sorted(buckets)) for at, buckets in sorted(buckets_by_time.items())]
    return [(at, buckets) for at, buckets in histograms if buckets[-1][0] == math.inf and buckets[-1][1] > 0]


async def firing(url: str, target: str, without: Collection[str] = ()) -> list[str]:
    """Names of the firing alerts of a target, except those in `without` and those of severity info. Raises QueryFailed."""
    names = _quoted("|".join(sorted(without)))
    query = f'ALERTS{{alertstate="firing",severity!="info",alertname!~{names},target={_quoted(target)}}}'
    with _read_from(url):
        return sorted({str(row["metric"]["alertname"]) for row in await _rows(url, "query", {"query": query})})


async def instant(url: str, query: str) -> float:
    """Current value of a query that returns a scalar or one series. Raises QueryFailed, also for no data, NaN and infinity."""
    rows = await _rows(url, "query", {"query": query})
    try:
        values = (
            [float(row["value"][1]) for row in rows] if all(isinstance(row, dict) for row in rows) else [float(rows[1])]
        )
    except (IndexError, KeyError, TypeError, ValueError) as problem:
        raise QueryFailed(f"{mask_secrets(url)}: {query!r} does not give a number: {problem!r}") from None
    if len(values) != 1:
        result = f"{len(values)} series; aggregate them, such as with sum()" if values else "no data"
        raise QueryFailed(f"{mask_secrets(url)}: {query!r} gives {result}")
    if not math.isfinite(values[0]):
        raise QueryFailed(f"{mask_secrets(url)}: {query!r} gives {values[0]}, not a finite number")
    return values[0]


@dataclass(frozen=True, slots=True)
class LoadedRule:
    """A rule that a Prometheus evaluates. name: of the alert or of the recorded series"""

    name: str
    query: str
    group: str
    file: str


async def loaded_rules(url: str) -> list[LoadedRule]:
    """All rules of a Prometheus. Raises QueryFailed."""
    groups = await _rows(url, "rules?exclude_alerts=true", {}, "groups")
    with _read_from(url):
        return [
            LoadedRule(rule["name"], rule["query"], group["name"], group["file"])
            for group in groups
            for rule in group["rules"]
        ]


@contextmanager
def _read_from(url: str) -> Iterator[None]:
    """Context that reads an answer of the Prometheus at `url`. Raises QueryFailed if the answer has another form."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as problem:
        raise QueryFailed(f"{mask_secrets(url)}: not an answer of Prometheus: {problem!r}; check the URL") from None


async def _rows(url: str, path: str, parameters: dict[str, str], key: str = "result") -> list[Any]:
    """Query Prometheus and return `key` of the answer's `data`: a list of series, or [time, value] for a scalar. Raises QueryFailed."""
    redactor = Redactor()
    redactor.add_url(url)
    try:
        page = await fetch(
            f"{url}/api/v1/{path}",
            headers={},
            form=urlencode(parameters),
            timeout_s=TIMEOUT_S,
            limit=MAX_RESPONSE_BYTES,
        )
    except UnreadablePage as problem:  # the message may contain the start of a response that is not HTTP
        raise QueryFailed(redactor.redact(str(problem))) from None
    with _read_from(url):
        document: Any = orjson.loads(page.body)
        if document["status"] != "success":
            raise QueryFailed(f"{mask_secrets(url)}: {redactor.redact(error_message(page.body))}")
        rows: list[Any] = document["data"][key]
        return rows


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
