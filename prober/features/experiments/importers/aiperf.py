"""NVIDIA AIPerf: `profile_export_aiperf.json`, and `profile_export.jsonl` with one line per request."""

from collections.abc import Mapping
from typing import Any

from prober.features.experiments.importers import nvidia
from prober.features.experiments.importers.exported_object import ExportedObject, without_secrets
from prober.results.result import Load, Request, Result, Target, WarmUp
from prober.results.stage import stage_of_requests
from prober.results.strict_json import Unreadable

MAJOR = "1"  # 1.0 to 1.5 only added keys that are read here
DIFFERS = (
    "Its inter-token latency is one mean a request: it stands here as TPOT; its inter-chunk latency stands as ITL.",
    "TTFT and E2E count from when the request was sent; it moves its schedule when it is late.",
    "A stream that was cut, or that carries an error inside a 200, counts as a success.",
)


def recognises(values: Mapping[str, Any]) -> bool:
    """The object has the keys of an export of any version."""
    return "aiperf_version" in values and "combined" not in values


def recognises_line(values: Mapping[str, Any]) -> bool:
    """The object is a line of `profile_export.jsonl`."""
    metadata = values.get("metadata")
    return isinstance(metadata, Mapping) and "request_start_ns" in metadata and "metrics" in values


def read(exported: ExportedObject) -> Result:
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
    stage = nvidia.stage(exported, rate, concurrency)
    started, ended = exported.unix_s("start_time") or 0.0, exported.unix_s("end_time")
    warm = exported.count("warmup_metrics", "request_count", "avg")
    return Result(
        id=exported.text("benchmark_id") or exported.source,
        kind="run",
        started_unix_s=started,
        ended_unix_s=ended if ended is not None else started + (stage.duration_s or 0.0),
        tool=f"aiperf {exported.text('aiperf_version')}",
        target=Target(
            url=without_secrets(config.first(("endpoint", "urls"), ("endpoint", "url"))),
            model=config.first(("endpoint", "model_names"), ("models", "items", 0, "name"), ("models",)),
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
        differs=DIFFERS,
    )


def _phase(config: ExportedObject) -> ExportedObject:
    """Settings of the load; older releases have them under `loadgen` with other names."""
    phases = config.get("phases")
    for phase in phases if isinstance(phases, list) else ():
        if isinstance(phase, Mapping) and phase.get("kind", phase.get("name")) == "profiling":
            return ExportedObject(config.source, phase)
    old = config.inside("loadgen")
    phase = {"rate": old.get("request_rate"), "concurrency": old.get("concurrency"), "type": old.get("arrival_pattern")}
    return ExportedObject(config.source, phase)


def _arrivals(phase: ExportedObject) -> str | None:
    """Arrivals as text. With a limit of concurrency, requests wait for each other: a closed loop."""
    if phase.get("concurrency") is not None:
        return "closed"
    return phase.text("type") or ("poisson" if phase.get("rate") is not None else None)


def _length(config: ExportedObject, kind: str) -> str | None:
    mean = config.number("datasets", 0, "prompts", kind, "mean")
    deviation = config.number("datasets", 0, "prompts", kind, "stddev")
    return None if mean is None else f"normal, mean {mean:g}, standard deviation {deviation or 0:g}"


def lines(exported_objects: list[ExportedObject]) -> Result:
    """Result of the records of one run. Records of the warm-up are only counted."""
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
        target=Target(),
        load=Load(varied=len(lengths) > 1),
        stages=(
            stage_of_requests("one run", None, requests, begin_s=0.0, sending_s=None, duration_s=duration_s or None),
        ),
        warm_up=WarmUp(len(exported_objects) - len(records)) if len(records) < len(exported_objects) else None,
        differs=DIFFERS,
        requests=requests,
    )


def _request(exported: ExportedObject, start_s: float) -> Request:
    metrics, error = exported.inside("metrics"), exported.get("error")
    details = error if isinstance(error, Mapping) else {}
    gaps = metrics.inside("inter_chunk_latency")
    factor = nvidia.seconds(gaps, 1.0, gaps.text("unit"), "inter_chunk_latency") or 1.0
    return Request(
        stage=0,
        start_s=start_s,
        outcome="failed" if error is not None else "ok",
        error=str(details.get("message") or details.get("error_message") or (error if error is not None else "")),
        ttft_s=_seconds(metrics, "time_to_first_token"),
        itls_s=tuple(float(gap) * factor for gap in gaps.rows("value") or ()),
        tpot_s=_seconds(metrics, "inter_token_latency"),
        e2e_s=_seconds(metrics, "request_latency"),
        prompt_tokens=metrics.count("input_sequence_length", "value"),
        output_tokens=metrics.count("output_sequence_length", "value"),
    )


def _seconds(metrics: ExportedObject, key: str) -> float | None:
    return nvidia.seconds(metrics, metrics.number(key, "value"), metrics.text(key, "unit"), key)
