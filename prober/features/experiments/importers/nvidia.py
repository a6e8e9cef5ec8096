"""NVIDIA's AIPerf, which writes one object per metric with its unit and statistics.

`profile_export_aiperf.json`, and `profile_export.jsonl` with one line per request.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from prober.features.experiments.importers.exported_object import (
    ExportedObject,
    reported,
    stage_of_figures,
    without_secrets,
)
from prober.results.result import Load, MeasuredTarget, RequestRow, Result, Stage, WarmUp
from prober.results.stage import stage_of_requests
from prober.results.strict_json import Unreadable

_SECONDS = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
# Their inter-token latency is one mean a request, so it is our TPOT; chunk gaps are our ITL.
LATENCIES: Mapping[str, str] = {
    "ttft": "time_to_first_token",
    "tpot": "inter_token_latency",
    "itl": "inter_chunk_latency",
    "e2e": "request_latency",
}


def _unit_s(exported: ExportedObject, key: str) -> float:
    """Seconds in one unit of a metric. Raises Unreadable if the unit is no time."""
    unit = exported.text(key, "unit")
    if (factor := _SECONDS.get(unit or "ms")) is None:
        raise Unreadable(f"{exported.source}: {key}.unit: is {unit!r}, not one of {', '.join(_SECONDS)}")
    return factor


def _seconds(exported: ExportedObject, key: str, figure: str) -> float | None:
    """A statistic of a metric, such as `p99`, in seconds."""
    unit_s, value = _unit_s(exported, key), exported.number(key, "avg" if figure == "mean" else figure)
    return None if value is None else unit_s * value


def _stage(exported: ExportedObject, rate_per_s: float | None, concurrency: int | None) -> Stage:
    """Stage with the figures of one run. concurrency: requests in flight, None if not limited"""
    completed = exported.count("request_count", "avg")
    failed = exported.count("error_request_count", "avg")
    if failed is None and exported.rows("error_summary") == []:  # AIPerf writes no count where nothing failed
        failed = 0
    per_s = exported.number("request_throughput", "avg")
    duration_s = exported.number("benchmark_duration", "avg")
    if duration_s is None and completed and per_s:
        duration_s = completed / per_s
    if completed is None:
        completed = exported.count("request_latency", "count") or round((per_s or 0.0) * (duration_s or 0.0))
    goodput = exported.number("goodput", "avg") or exported.number("request_goodput", "avg")
    name = f"{rate_per_s:g}/s" if rate_per_s else f"concurrency {concurrency}" if concurrency else "one run"
    figures, counts = dict[str, dict[str, float]](), dict[str, int]()
    for latency, key in LATENCIES.items():
        figures[latency] = reported(partial(_seconds, exported, key), completed)
        count = exported.count(key, "count")
        # Of gaps the number is not known.
        counts[latency] = count if count is not None else 0 if latency == "itl" else completed
    tokens = []
    for total, per_request in (("total_isl", "input_sequence_length"), ("total_osl", "output_sequence_length")):
        of_all, mean = exported.number(total, "avg"), exported.number(per_request, "avg")
        tokens.append(completed * mean if of_all is None and mean is not None else of_all)
    return replace(
        stage_of_figures(name, rate_per_s, duration_s, completed, failed, figures, counts),
        reported={latency: values for latency, values in figures.items() if values},
        prompt_tokens=tokens[0],
        output_tokens=tokens[1],
        good=round(goodput * duration_s) if goodput is not None and duration_s is not None else None,
    )


MAJOR = "1"  # 1.0 to 1.5 only added keys that are read here
AIPERF_DIFFERS = (
    "Its inter-token latency is one mean a request: it stands here as TPOT; its inter-chunk latency stands as ITL.",
    "TTFT and E2E count from when the request was sent; it moves its schedule when it is late.",
    "A stream that was cut, or that carries an error inside a 200, counts as a success.",
)


def read_aiperf(exported: ExportedObject) -> Result:
    """Result of one run. Raises Unreadable for another major version, or a file of several runs."""
    version = exported.text("schema_version") or f"{MAJOR}.0"
    if version.split(".")[0] != MAJOR:
        written_by = f"aiperf {exported.text('aiperf_version')}"
        raise Unreadable(
            f"{exported.source}: schema_version: is {version!r} (of {written_by}), this prober reads AIPerf's {MAJOR}.x"
        )
    if exported.get("request_latency") is None:
        raise Unreadable(
            f"{exported.source}: request_latency: is missing; name profile_export_aiperf.json of a single run, not an aggregate"
        )
    config = exported.inside("input_config")
    phase = _phase(config)
    rate, concurrency = phase.number("rate"), phase.count("concurrency")
    stage = _stage(exported, rate, concurrency)
    started, ended = exported.unix_s("start_time") or 0.0, exported.unix_s("end_time")
    warm = exported.count("warmup_metrics", "request_count", "avg")
    return Result(
        id=exported.text("benchmark_id") or exported.source,
        kind="run",
        started_unix_s=started,
        ended_unix_s=ended if ended is not None else started + (stage.duration_s or 0.0),
        tool=f"aiperf {exported.text('aiperf_version')}",
        target=MeasuredTarget(
            url=without_secrets(config.text("endpoint", "urls") or config.text("endpoint", "url")),
            model=config.text("endpoint", "model_names")
            or config.text("models", "items", 0, "name")
            or config.text("models"),
            api=config.text("endpoint", "type"),
        ),
        load=Load(
            prompt_tokens=_length(config, "isl"),
            output_tokens=_length(config, "osl"),
            arrivals=_arrivals(phase),
            max_in_flight=concurrency,
            seed=exported.count("run_info", "random_seed"),
        ),
        stages=(stage,),
        configuration=exported.text("run_info", "cli_command"),
        warm_up=WarmUp(warm) if warm is not None else None,
        stop="cancelled" if exported.get("was_cancelled") else None,
        differs=AIPERF_DIFFERS,
    )


def _phase(config: ExportedObject) -> ExportedObject:
    """The load settings of a configuration; older releases have them under `loadgen` with other names."""
    phases = config.get("phases")
    for phase in phases if isinstance(phases, list) else ():
        if isinstance(phase, Mapping) and phase.get("kind", phase.get("name")) == "profiling":
            return ExportedObject(config.source, phase)
    old = config.inside("loadgen")
    phase = {"rate": old.get("request_rate"), "concurrency": old.get("concurrency"), "type": old.get("arrival_pattern")}
    return ExportedObject(config.source, phase)


def _arrivals(phase: ExportedObject) -> str | None:
    """The arrival process as text. It is a closed loop if concurrency is limited, as requests then wait for each other."""
    if phase.get("concurrency") is not None:
        return "closed"
    return phase.text("type") or ("poisson" if phase.get("rate") is not None else None)


def _length(config: ExportedObject, kind: str) -> str | None:
    mean = config.number("datasets", 0, "prompts", kind, "mean")
    deviation = config.number("datasets", 0, "prompts", kind, "stddev")
    return None if mean is None else f"normal, mean {mean:g}, standard deviation {deviation or 0:g}"


def read_aiperf_lines(exported_objects: list[ExportedObject]) -> Result:
    """Result from the records of the requests of one run. Records of the warm-up are only counted."""
    records = [record for record in exported_objects if record.text("metadata", "benchmark_phase") != "warmup"]
    starts_ns = [record.number("metadata", "request_start_ns") or 0.0 for record in records]
    origin_ns = min(starts_ns, default=0.0)
    pairs = list(zip(records, starts_ns, strict=True))
    requests = tuple(_request(record, (start_ns - origin_ns) / 1e9) for record, start_ns in pairs)
    ends_ns = [record.number("metadata", "request_end_ns") or start_ns for record, start_ns in pairs]
    duration_s = (max(ends_ns, default=origin_ns) - origin_ns) / 1e9
    lengths = {request.prompt_tokens for request in requests}
    return Result(
        id=exported_objects[0].source,
        kind="run",
        started_unix_s=origin_ns / 1e9,
        ended_unix_s=origin_ns / 1e9 + duration_s,
        tool="aiperf",
        target=MeasuredTarget(),
        load=Load(varied=len(lengths) > 1),
        stages=(
            stage_of_requests("one run", None, requests, begin_s=0.0, sending_s=None, duration_s=duration_s or None),
        ),
        warm_up=WarmUp(len(exported_objects) - len(records)) if len(records) < len(exported_objects) else None,
        differs=AIPERF_DIFFERS,
    )


def _request(exported: ExportedObject, start_s: float) -> RequestRow:
    metrics, error = exported.inside("metrics"), exported.get("error")
    details = error if isinstance(error, Mapping) else {}
    unit_s = _unit_s(metrics, LATENCIES["itl"])
    ttft_s, tpot_s, e2e_s = (_seconds(metrics, LATENCIES[name], "value") for name in ("ttft", "tpot", "e2e"))
    return RequestRow(
        start_s=start_s,
        outcome="failed" if error is not None else "ok",
        error=str(details.get("message") or details.get("error_message") or (error if error is not None else "")),
        ttft_s=ttft_s,
        itls_s=tuple(float(gap) * unit_s for gap in metrics.rows(LATENCIES["itl"], "value") or ()),
        tpot_s=tpot_s,
        e2e_s=e2e_s,
        prompt_tokens=metrics.count("input_sequence_length", "value"),
        output_tokens=metrics.count("output_sequence_length", "value"),
    )
