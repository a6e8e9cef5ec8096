"""Ray's llmperf: `…_summary.json`, and `…_individual_responses.json` with one row per request."""

from collections.abc import Mapping
from typing import Any

from prober.features.experiments.importers.exported_object import (
    ExportedObject,
    average,
    counted,
    reported,
    times,
    tool_quantiles,
)
from prober.results.result import Load, Request, Result, Stage, Target
from prober.results.stage import stage_of_requests
from prober.results.strict_json import Unreadable

TOOL = "llmperf"
VERSION = "2023-08-31"
DIFFERS = (
    "A request is sent when another one has ended: a slow target is asked less.",
    "Its inter-token latency is the whole time ÷ tokens, TTFT included: it is no ITL and no TPOT, and left out here.",
    "Tokens are counted with one Llama tokenizer, whatever the model.",
    "TTFT and E2E count from when the request was sent, connecting included.",
)


def recognises_summary(values: Mapping[str, Any]) -> bool:
    """The object has the summary's keys."""
    return "results_num_requests_started" in values or "results_ttft_s_quantiles_p50" in values


def recognises_row(values: Mapping[str, Any]) -> bool:
    """The object is a row of the individual responses."""
    return "ttft_s" in values and "end_to_end_latency_s" in values


def summary(exported: ExportedObject) -> Result:
    """Result of a summary, with one stage. Raises Unreadable for another version."""
    version = exported.text("version")
    if version not in (None, VERSION):
        raise Unreadable(f"{exported.source}: version: is {version!r}, this prober reads llmperf's {VERSION}")
    completed, sent = exported.count("results_num_completed_requests"), exported.count("results_num_requests_started")
    output = times(float(completed or 0), exported.number("results_number_output_tokens_mean"))
    per_s = exported.number("results_mean_output_throughput_token_per_s")
    answers = completed or 0
    figures = {
        latency: values
        for latency, key in (("ttft", "ttft_s"), ("e2e", "end_to_end_latency_s"))
        if (values := _reported(exported, f"results_{key}", answers))
    }
    stage = Stage(
        name=f"concurrency {exported.text('num_concurrent_requests') or 'unknown'}",
        rate_per_s=None,
        begin_s=None,
        sending_s=None,
        duration_s=output / per_s if output and per_s else None,
        sent=answers if sent is None else sent,
        answered=answers,
        outcomes={} if sent is None else counted(answers, sent - answers),
        latencies={latency: tool_quantiles(values, answers) for latency, values in figures.items()},
        reported=figures,
        prompt_tokens=times(float(completed or 0), exported.number("results_number_input_tokens_mean")),
        output_tokens=output,
    )
    deviation = exported.number("stddev_input_tokens")
    load = Load(
        prompt_tokens=_normal(exported, "input"),
        output_tokens=_normal(exported, "output"),
        varied=deviation > 0 if deviation is not None else None,
        arrivals="closed",
        max_in_flight=exported.count("num_concurrent_requests"),
    )
    ended = exported.number("timestamp") or 0.0
    return _result(exported.source, exported.text("model"), load, stage, (), ended)


def rows(exported_objects: list[ExportedObject]) -> Result:
    """Result of the individual responses: latencies of each request, without times of sending."""
    requests = tuple(_request(exported) for exported in exported_objects)
    stage = stage_of_requests("closed loop", None, requests, begin_s=None, sending_s=None)
    lengths = {request.prompt_tokens for request in requests}
    return _result(
        exported_objects[0].source, None, Load(varied=len(lengths) > 1, arrivals="closed"), stage, requests, 0.0
    )


def _request(exported: ExportedObject) -> Request:
    code = exported.text("error_code")
    ttft_s, e2e_s = exported.number("ttft_s") or None, exported.number("end_to_end_latency_s") or None
    output = exported.count("number_output_tokens") or None
    decode_s = e2e_s - ttft_s if ttft_s is not None and e2e_s is not None else None
    return Request(
        stage=0,
        start_s=None,
        outcome="failed" if code is not None or ttft_s is None else "ok",
        error=exported.text("error_msg") or (f"error code {code}" if code is not None else ""),
        ttft_s=ttft_s,
        tpot_s=average(decode_s, output - 1) if output is not None else None,
        e2e_s=e2e_s,
        prompt_tokens=exported.count("number_input_tokens"),
        output_tokens=output,
    )


def _result(
    source: str, model: str | None, load: Load, stage: Stage, requests: tuple[Request, ...], ended: float
) -> Result:
    return Result(
        id=source,
        kind="run",
        started_unix_s=ended - (stage.duration_s or 0.0) if ended else 0.0,
        ended_unix_s=ended,
        tool=TOOL,
        target=Target(model=model, api="chat"),
        load=load,
        stages=(stage,),
        differs=DIFFERS,
        requests=requests,
    )


def _reported(exported: ExportedObject, key: str, answers: int) -> dict[str, float]:
    keys = {"mean": "mean", "std": "stddev", "max": "max"}
    return reported(lambda name: exported.number(f"{key}_{keys.get(name, f'quantiles_{name}')}"), answers)


def _normal(exported: ExportedObject, kind: str) -> str | None:
    mean, deviation = (exported.text(f"{name}_{kind}_tokens") for name in ("mean", "stddev"))
    return f"normal, mean {mean}, standard deviation {deviation or 'unknown'}" if mean is not None else None
