"""The Prometheus that scrapes this prober, asked for what it holds from before."""

import math
from collections.abc import Collection
from typing import Any

import aiohttp
import orjson

from prober.config.problems import shown
from prober.net.address import connector
from prober.net.redaction import Veil
from prober.net.scrape import whole

TIMEOUT_S = 20.0
LIMIT_BYTES = 8 << 20
SAID = 500  # characters of its own words
HOUR_S = 3600


class Unanswered(Exception):
    """It could not be asked, or its answer cannot be used; the message says why, with the address."""


async def hourly_histograms(
    url: str, series: str, labels: dict[str, str], end_unix_s: float, hours: int
) -> list[tuple[float, list[tuple[float, float]]]]:
    """[(middle of the hour, unix seconds; [(upper bound in seconds, observations up to it)])] of the last `hours`.

    All replicas of the prober together. Hours without observations are left out. Raises Unanswered.
    """
    matchers = ",".join(f"{name}={_quoted(value)}" for name, value in labels.items())
    query = f"sum by (le) (increase({series}_bucket{{{matchers}}}[1h]))"
    end = end_unix_s // HOUR_S * HOUR_S
    asked = {"query": query, "start": str(end - (hours - 1) * HOUR_S), "end": str(end), "step": str(HOUR_S)}
    found: dict[float, list[tuple[float, float]]] = {}
    try:
        for row in await _rows(url, "query_range", asked):
            bound = float(row["metric"]["le"])
            for at, value in row["values"]:
                found.setdefault(float(at), []).append((bound, float(value)))
    except (KeyError, TypeError, ValueError) as problem:
        raise Unanswered(f"{shown(url)}: not the answer of a Prometheus: {problem!r}") from None
    histograms = [(at - HOUR_S / 2, sorted(buckets)) for at, buckets in sorted(found.items())]
    return [(at, buckets) for at, buckets in histograms if buckets[-1][0] == math.inf and buckets[-1][1] > 0]


async def firing(url: str, target: str, without: Collection[str] = ()) -> list[str]:
    """Names of the alerts that fire for a target; those only informed of, and `without`, are left out. Raises Unanswered."""
    names = _quoted("|".join(sorted(without)))
    query = f'ALERTS{{alertstate="firing",severity!="info",alertname!~{names},target={_quoted(target)}}}'
    try:
        return sorted({str(row["metric"]["alertname"]) for row in await _rows(url, "query", {"query": query})})
    except (KeyError, TypeError) as problem:
        raise Unanswered(f"{shown(url)}: not the answer of a Prometheus: {problem!r}") from None


async def instant(url: str, query: str) -> float:
    """The one value that a query has now, a scalar's or that of its only series. Raises Unanswered, also for NaN and no data."""
    rows = await _rows(url, "query", {"query": query})
    try:
        values = (
            [float(row["value"][1]) for row in rows] if all(isinstance(row, dict) for row in rows) else [float(rows[1])]
        )
    except (IndexError, KeyError, TypeError, ValueError) as problem:
        raise Unanswered(f"{shown(url)}: {query!r} does not give a number now: {problem!r}") from None
    if len(values) != 1:
        said = f"{len(values)} series; sum() makes them one" if values else "no data"
        raise Unanswered(f"{shown(url)}: {query!r} gives {said}")
    if not math.isfinite(values[0]):
        raise Unanswered(f"{shown(url)}: {query!r} gives {values[0]}, which is not known")
    return values[0]


async def _rows(url: str, path: str, asked: dict[str, str]) -> list[Any]:
    """`result` of the answer: series, or of a scalar [time, value]. Raises Unanswered."""
    veil = Veil()
    veil.keep_of(url)
    try:
        async with (
            aiohttp.ClientSession(
                connector=connector(), timeout=aiohttp.ClientTimeout(TIMEOUT_S), auto_decompress=False
            ) as session,
            session.post(
                f"{url}/api/v1/{path}", data=asked, headers={"Accept-Encoding": "identity"}, allow_redirects=False
            ) as answer,
        ):
            if 300 <= answer.status < 400:
                raise Unanswered(
                    f"{shown(url)}: HTTP {answer.status}: redirects are not followed; give its own address"
                )
            document: Any = orjson.loads(await whole(answer, LIMIT_BYTES))
        if document["status"] != "success":
            raise Unanswered(f"{shown(url)}: {veil.over(str(document.get('error', document))[:SAID])}")
        rows: list[Any] = document["data"]["result"]
        return rows
    except (TimeoutError, aiohttp.ClientError, OSError) as problem:
        said = veil.over(str(problem))  # with what an answer that is no HTTP begins with
        raise Unanswered(f"{shown(url)}: {shown(said) or type(problem).__name__}") from None
    except (KeyError, TypeError, ValueError) as problem:
        raise Unanswered(f"{shown(url)}: not the answer of a Prometheus: {problem!r}") from None


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
