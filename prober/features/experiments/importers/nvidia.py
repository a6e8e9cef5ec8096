"""Form that GenAI-Perf and AIPerf share: one object per metric, with its unit and statistics."""

from collections.abc import Iterator, Mapping

from prober.features.experiments.importers.exported_object import ExportedObject, times, tool_quantiles
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


def seconds(exported: ExportedObject, value: float | None, unit: str | None, key: str) -> float | None:
    """Value in seconds. Raises Unreadable for a unit that is no time."""
    factor = _SECONDS.get(unit or "ms")
    if factor is None:
        raise Unreadable(f"{exported.source}: {key}.unit: is {unit!r}, not one of {', '.join(_SECONDS)}")
    return times(factor, value)


def stage(exported: ExportedObject, rate_per_s: float | None, concurrency: int | None) -> Stage:
    """Stage of a run."""
    completed = exported.count("request_count", "avg")
    failed = exported.count("error_request_count", "avg") or 0
    per_s = exported.number("request_throughput", "avg")
    duration_s = exported.number("benchmark_duration", "avg")
    if duration_s is None and completed and per_s:
        duration_s = completed / per_s
    if completed is None:
        completed = exported.count("request_latency", "count") or round((per_s or 0.0) * (duration_s or 0.0))
    goodput = exported.number("goodput", "avg") or exported.number("request_goodput", "avg")
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
            latency: quantiles
            for latency, key in LATENCIES.items()
            if (quantiles := _quantiles(exported, key, completed))
        },
        prompt_tokens=_tokens(exported, "total_isl", "input_sequence_length", completed),
        output_tokens=_tokens(exported, "total_osl", "output_sequence_length", completed),
        good=round(goodput * duration_s) if goodput is not None and duration_s is not None else None,
    )


def _quantiles(exported: ExportedObject, key: str, completed: int) -> tuple[Quantile, ...]:
    count = exported.count(key, "count")
    return tool_quantiles(
        _quantile_values(exported, key),
        count if count is not None else 0 if key == "inter_chunk_latency" else completed,
    )


def _quantile_values(exported: ExportedObject, key: str) -> Iterator[tuple[float, float | None]]:
    unit = exported.text(key, "unit")
    for q in QS:
        yield q, seconds(exported, exported.number(key, "max" if q == 1.0 else f"p{q * 100:g}"), unit, key)


def _tokens(exported: ExportedObject, total: str, per_request: str, completed: int) -> float | None:
    tokens = exported.number(total, "avg")
    return tokens if tokens is not None else times(float(completed), exported.number(per_request, "avg"))
