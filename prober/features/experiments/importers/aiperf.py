"""NVIDIA AIPerf: `profile_export_aiperf.json`, and `profile_export.jsonl` with a line for each request."""

from collections.abc import Mapping
from typing import Any

from prober.features.experiments.importers import nvidia
from prober.features.experiments.importers.sheet import Sheet, without_secrets
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
    """The object has the export's keys, in whatever version."""
    return "aiperf_version" in values and "combined" not in values


def recognises_line(values: Mapping[str, Any]) -> bool:
    """The object is a line of the records."""
    metadata = values.get("metadata")
    return isinstance(metadata, Mapping) and "request_start_ns" in metadata and "metrics" in values


def read(sheet: Sheet) -> Result:
    """One file is one run. Raises Unreadable for another major version, or a file that is not of one run."""
    version = sheet.text("schema_version") or f"{MAJOR}.0"
    if version.split(".")[0] != MAJOR:
        raise Unreadable(
            f"{sheet.source}: schema_version: is {version!r} (of aiperf {sheet.text('aiperf_version')}), this prober reads AIPerf's "
            f"{MAJOR}.x"
        )
    if sheet.get("request_latency") is None:
        raise Unreadable(
            f"{sheet.source}: request_latency: is missing; name profile_export_aiperf.json of a single run, not an aggregate"
        )
    config = sheet.inside("input_config")
    phase = _phase(config)
    rate, concurrency = phase.number("rate"), phase.count("concurrency")
    stage = nvidia.stage(sheet, rate, concurrency)
    started, ended = sheet.unix_s("start_time") or 0.0, sheet.unix_s("end_time")
    warm = sheet.count("warmup_metrics", "request_count", "avg")
    return Result(
        id=sheet.text("benchmark_id") or sheet.source,
        kind="run",
        started_unix_s=started,
        ended_unix_s=ended if ended is not None else started + (stage.duration_s or 0.0),
        tool=f"aiperf {sheet.text('aiperf_version')}",
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
            seed=sheet.count("run_info", "random_seed"),
        ),
        stages=(stage,),
        configuration=sheet.text("run_info", "cli_command"),
        warm_up=WarmUp(warm) if warm is not None else None,
        stop="cancelled" if sheet.get("was_cancelled") else None,
        differs=DIFFERS,
    )


def _phase(config: Sheet) -> Sheet:
    """What was told of the load; older releases have it under `loadgen`, by other names."""
    for each in config.get("phases") if isinstance(config.get("phases"), list) else ():
        if isinstance(each, Mapping) and each.get("kind", each.get("name")) == "profiling":
            return Sheet(config.source, each)
    old = config.inside("loadgen")
    known = {"rate": old.get("request_rate"), "concurrency": old.get("concurrency"), "type": old.get("arrival_pattern")}
    return Sheet(config.source, known)


def _arrivals(phase: Sheet) -> str | None:
    """A cap on concurrency makes requests wait for one another."""
    if phase.get("concurrency") is not None:
        return "closed"
    return phase.text("type") or ("poisson" if phase.get("rate") is not None else None)


def _length(config: Sheet, kind: str) -> str | None:
    mean = config.number("datasets", 0, "prompts", kind, "mean")
    deviation = config.number("datasets", 0, "prompts", kind, "stddev")
    return None if mean is None else f"normal, mean {mean:g}, standard deviation {deviation or 0:g}"


def lines(sheets: list[Sheet]) -> Result:
    """The records of one run, each with its latencies; those of the warm-up are counted, not shown."""
    measured = [each for each in sheets if each.text("metadata", "benchmark_phase") != "warmup"]
    starts = [each.number("metadata", "request_start_ns") or 0.0 for each in measured]
    origin = min(starts, default=0.0)
    requests = tuple(_request(each, (start - origin) / 1e9) for each, start in zip(measured, starts, strict=True))
    ends = [(each.number("metadata", "request_end_ns") or start) for each, start in zip(measured, starts, strict=True)]
    seconds = (max(ends, default=origin) - origin) / 1e9
    lengths = {each.prompt_tokens for each in requests}
    return Result(
        id=sheets[0].source,
        kind="run",
        started_unix_s=origin / 1e9,
        ended_unix_s=origin / 1e9 + seconds,
        tool="aiperf",
        target=Target(),
        load=Load(varied=len(lengths) > 1),
        stages=(stage_of_requests("one run", None, requests, begin_s=0.0, sending_s=None, duration_s=seconds or None),),
        warm_up=WarmUp(len(sheets) - len(measured)) if len(measured) < len(sheets) else None,
        differs=DIFFERS,
        requests=requests,
    )


def _request(sheet: Sheet, start_s: float) -> Request:
    metrics, error = sheet.inside("metrics"), sheet.get("error")
    said = error if isinstance(error, Mapping) else {}
    gaps = metrics.inside("inter_chunk_latency")
    factor = nvidia.seconds(gaps, 1.0, gaps.text("unit"), "inter_chunk_latency") or 1.0
    return Request(
        stage=0,
        start_s=start_s,
        outcome="failed" if error is not None else "ok",
        error=str(said.get("message") or said.get("error_message") or (error if error is not None else "")),
        ttft_s=_seconds(metrics, "time_to_first_token"),
        itls_s=tuple(float(each) * factor for each in gaps.rows("value") or ()),
        tpot_s=_seconds(metrics, "inter_token_latency"),
        e2e_s=_seconds(metrics, "request_latency"),
        prompt_tokens=metrics.count("input_sequence_length", "value"),
        output_tokens=metrics.count("output_sequence_length", "value"),
    )


def _seconds(metrics: Sheet, key: str) -> float | None:
    return nvidia.seconds(metrics, metrics.number(key, "value"), metrics.text(key, "unit"), key)
