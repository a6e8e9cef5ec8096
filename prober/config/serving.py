"""Configuration of what serves a target: the engine's metrics page, TLS, GPUs and the decode step."""

import json
from collections.abc import Callable
from typing import Any

from prober.config import models
from prober.config.problems import Problems, is_http, shown
from prober.config.specs import DecodeSpec, GpusSpec, MetricsSpec, TlsSpec
from prober.config.variables import Variables
from prober.measure.bandwidth_bound import ModelOverrides, UnknownFigure, decode_model, memory_bandwidth


def resolve_metrics(block: models.Metrics, path: str, variables: Variables, problems: Problems) -> MetricsSpec | None:
    """Location of the engine's metrics page; None: not read."""
    if block.interval < 0.5:
        problems.add(f"{path}.interval", f"{block.interval:g}s would disturb the engine; use 500ms or more")
    if block.url == "none":
        return None
    url = variables.url(block.url, f"{path}.url")
    if url != "auto" and not is_http(url):
        problems.add(
            f"{path}.url",
            f"{shown(block.url)!r} is not auto, none, or an http or https URL; write http://host:port/metrics",
        )
    return MetricsSpec(None if url == "auto" else url, block.interval)


def resolve_tls(block: models.Tls | None, path: str, problems: Problems) -> TlsSpec | None:
    """TLS settings for the server's and the prober's certificates."""
    if block is None:
        return None
    if bool(block.cert_file) != bool(block.key_file):
        problems.add(path, "needs cert_file and key_file together; add the other one, or remove both")
    return TlsSpec(block.ca_file, block.insecure_skip_verify, block.cert_file, block.key_file, block.server_name)


def resolve_gpus(block: models.Gpus) -> GpusSpec:
    """GPUs of the target."""
    chosen: tuple[int | str, ...] | None
    match block.indices:
        case None:
            chosen = None
        case "all":
            chosen = ("all",)
        case "none":
            chosen = ()
        case listed:
            chosen = tuple(listed)
    return GpusSpec(chosen, block.price_per_hour)


def resolve_decode_bound(
    block: models.DecodeBound | None, path: str, problems: Problems, read: Callable[[str], str]
) -> DecodeSpec | None:
    """Bytes that a decode step reads and the memory bandwidth; None if not configured or unknown."""
    if block is None:
        return None
    config: Any = None
    if block.config_file is not None:
        try:
            config = json.loads(read(block.config_file))
        except (OSError, ValueError) as problem:
            problems.add(f"{path}.config_file", f"cannot be read: {problem}; name the model's config.json")
            return None
        if not isinstance(config, dict):
            problems.add(f"{path}.config_file", "is no JSON object; name the model's config.json")
            return None
    model = decode_model(
        config, ModelOverrides(block.active_parameters, block.bytes_per_weight, block.kv_bytes_per_token)
    )
    if isinstance(model, UnknownFigure):
        problems.add(path, model.reason)
        return None
    bandwidth = block.memory_bandwidth
    if bandwidth is None and block.gpu is not None:
        found = memory_bandwidth(block.gpu)
        if isinstance(found, UnknownFigure):
            problems.add(f"{path}.gpu", f"{found.reason} with `memory_bandwidth`, in bytes/s")
            return None
        bandwidth = found
    return DecodeSpec(model, bandwidth, block.gpus)
