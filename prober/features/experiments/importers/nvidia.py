"""The form that GenAI-Perf and AIPerf share: an object a metric, with its unit and statistics."""

from collections.abc import Iterator, Mapping

from prober.features.experiments.importers.sheet import Sheet, times, told
from prober.results.result import Stage
from prober.results.stage import QS
from prober.results.strict_json import Unreadable
from prober.statistics.quantiles import Quantile

_SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
# Their inter-token latency is one mean a request, so it is our TPOT; chunk gaps are our ITL.
LATENCIES: Mapping[str, str] = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "itl": "inter_chunk_latency",
    "e2e": "request_latency",
}


def seconds(sheet: Sheet, value: float | None, unit: str | None, key: str) -> float | None:
    """A value in its unit. Raises Unreadable for a unit that is no time."""
    factor = _SECONDS.get(unit or "ms")
    if factor is None:
        raise Unreadable(f"{sheet.source}: {key}.unit: is {unit!r}, not one of {', '.join(_SECONDS)}")
    return times(factor, value)


def stage(sheet: Sheet, rate_per_s: float | None, concurrency: int | None) -> Stage:
    """What the run came to."""
    completed = sheet.count("request_count", "avg")
    failed = sheet.count("error_request_count", "avg") or 0
    per_s = sheet.number("request_throughput", "avg")
    duration_s = sheet.number("benchmark_duration", "avg")
    if duration_s is None and completed and per_s:
        duration_s = completed / per_s
    if completed is None:
        completed = sheet.count("request_latency", "count") or round((per_s or 0.0) * (duration_s or 0.0))
    goodput = sheet.number("goodput", "avg") or sheet.number("request_goodput", "avg")
    name = f"{rate_per_s:g}/s" if rate_per_s else f"concurrency {concurrency}" if concurrency else "one run"
    return Stage(
        name=name,
        rate_per_s=rate_per_s,
        begin_s=0.0,
        sending_s=None,
        duration_s=duration_s,
        sent=completed + failed,
        answered=completed,
        outcomes={"ok": completed, **({"failed": failed} if failed else {})},
        latencies={
            latency: found for latency, key in LATENCIES.items() if (found := _quantiles(sheet, key, completed))
        },
        prompt_tokens=_tokens(sheet, "total_isl", "input_sequence_length", completed),
        output_tokens=_tokens(sheet, "total_osl", "output_sequence_length", completed),
        good=round(goodput * duration_s) if goodput is not None and duration_s is not None else None,
    )


def _quantiles(sheet: Sheet, key: str, completed: int) -> tuple[Quantile, ...]:
    count = sheet.count(key, "count")
    return told(_told(sheet, key), count if count is not None else 0 if key == "inter_chunk_latency" else completed)


def _told(sheet: Sheet, key: str) -> Iterator[tuple[float, float | None]]:
    unit = sheet.text(key, "unit")
    for q in QS:
        yield q, seconds(sheet, sheet.number(key, "max" if q == 1.0 else f"p{q * 100:g}"), unit, key)


def _tokens(sheet: Sheet, total: str, each: str, completed: int) -> float | None:
    found = sheet.number(total, "avg")
    return found if found is not None else times(float(completed), sheet.number(each, "avg"))
