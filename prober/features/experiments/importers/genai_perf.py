"""NVIDIA GenAI-Perf: `profile_export_genai_perf.json`."""

from collections.abc import Mapping
from typing import Any

from prober.features.experiments.importers import nvidia
from prober.features.experiments.importers.exported_object import ExportedObject, without_secrets
from prober.results.result import Load, Result, Target, WarmUp

DIFFERS = (
    "Its inter-token latency is one mean a request: it stands here as TPOT, and ITL is not known.",
    "TTFT and E2E count from when the request was sent, not from when it was due.",
    "Tokens are counted with a tokenizer of the client, not by the server's usage.",
    "Its file does not say when it was measured.",
)


def recognises(values: Mapping[str, Any]) -> bool:
    """The object has GenAI-Perf's keys and is not its successor's."""
    return "request_throughput" in values and "input_config" in values and "aiperf_version" not in values


def read(exported: ExportedObject) -> Result:
    """Result of one run. The file has no version: keys of several releases are tried."""
    config = exported.inside("input_config")
    stimulus = config.inside("perf_analyzer", "stimulus")
    rate = config.number("request_rate") or stimulus.number("request_rate")
    concurrency = config.count("concurrency") or stimulus.count("concurrency")
    lengths = config.inside("input", "synthetic_tokens")
    mean = config.number("synthetic_input_tokens_mean") or lengths.number("mean")
    deviation = lengths.number("stddev") if lengths.values else config.number("synthetic_input_tokens_stddev")
    warm = config.count("perf_analyzer", "warmup_request_count")
    stage = nvidia.stage(exported, rate, concurrency)
    return Result(
        id=exported.source,
        kind="run",
        started_unix_s=0.0,
        ended_unix_s=stage.duration_s or 0.0,
        tool="genai-perf",
        target=Target(
            url=without_secrets(config.text("endpoint", "url") or None),
            model=config.first(("formatted_model_name",), ("model",), ("model_names",)),
            engine=config.first(("backend",), ("endpoint", "backend")),
            api=config.first(("endpoint_type",), ("endpoint", "type")),
        ),
        load=Load(
            prompt_tokens=f"normal, mean {mean:g}, standard deviation {deviation or 0:g}" if mean else None,
            varied=deviation > 0 if deviation is not None else None,
            arrivals="poisson" if rate else "closed" if concurrency else None,
            max_in_flight=concurrency,
            seed=config.count("random_seed")
            if "random_seed" in config.values
            else config.count("input", "random_seed"),
        ),
        stages=(stage,),
        warm_up=WarmUp(warm) if warm is not None else None,
        differs=DIFFERS,
    )
