"""Ray's llmperf: `…_summary.json`, and `…_individual_responses.json` with a row for each request."""

from collections.abc import Iterator, Mapping
from typing import Any

from prober.features.experiments.importers.sheet import Sheet, average, times, told
from prober.results.result import Load, Request, Result, Stage, Target
from prober.results.stage import QS, stage_of_requests
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


def summary(sheet: Sheet) -> Result:
    """The summary is one stage. Raises Unreadable for another version."""
    version = sheet.text("version")
    if version not in (None, VERSION):
        raise Unreadable(f"{sheet.source}: version: is {version!r}, this prober reads llmperf's {VERSION}")
    completed, sent = sheet.count("results_num_completed_requests"), sheet.count("results_num_requests_started")
    output = times(float(completed or 0), sheet.number("results_number_output_tokens_mean"))
    per_s = sheet.number("results_mean_output_throughput_token_per_s")
    failed = (sent or 0) - (completed or 0)
    stage = Stage(
        name=f"concurrency {sheet.text('num_concurrent_requests') or 'unknown'}",
        rate_per_s=None,
        begin_s=None,
        sending_s=None,
        duration_s=output / per_s if output and per_s else None,
        sent=sent or completed or 0,
        answered=completed or 0,
        outcomes={"ok": completed or 0, **({"failed": failed} if failed > 0 else {})},
        latencies={
            latency: found
            for latency, key in (("ttft", "ttft_s"), ("e2e", "end_to_end_latency_s"))
            if (found := told(_told(sheet, f"results_{key}"), completed or 0))
        },
        prompt_tokens=times(float(completed or 0), sheet.number("results_number_input_tokens_mean")),
        output_tokens=output,
    )
    deviation = sheet.number("stddev_input_tokens")
    load = Load(
        prompt_tokens=_normal(sheet, "input"),
        output_tokens=_normal(sheet, "output"),
        varied=deviation > 0 if deviation is not None else None,
        arrivals="closed",
        max_in_flight=sheet.count("num_concurrent_requests"),
    )
    ended = sheet.number("timestamp") or 0.0
    return _result(sheet.source, sheet.text("model"), load, stage, (), ended)


def rows(sheets: list[Sheet]) -> Result:
    """The individual responses: latencies of each request, but not when or how long was sent."""
    requests = tuple(_request(sheet) for sheet in sheets)
    stage = stage_of_requests("closed loop", None, requests, begin_s=None, sending_s=None)
    lengths = {each.prompt_tokens for each in requests}
    return _result(sheets[0].source, None, Load(varied=len(lengths) > 1, arrivals="closed"), stage, requests, 0.0)


def _request(sheet: Sheet) -> Request:
    code = sheet.text("error_code")
    ttft_s, e2e_s = sheet.number("ttft_s") or None, sheet.number("end_to_end_latency_s") or None
    output = sheet.count("number_output_tokens") or None
    decode_s = e2e_s - ttft_s if ttft_s is not None and e2e_s is not None else None
    return Request(
        stage=0,
        start_s=None,
        outcome="failed" if code is not None or ttft_s is None else "ok",
        error=sheet.text("error_msg") or (f"error code {code}" if code is not None else ""),
        ttft_s=ttft_s,
        tpot_s=average(decode_s, output - 1) if output is not None else None,
        e2e_s=e2e_s,
        prompt_tokens=sheet.count("number_input_tokens"),
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


def _told(sheet: Sheet, key: str) -> Iterator[tuple[float, float | None]]:
    yield from ((q, sheet.number(f"{key}_quantiles_p{q * 100:g}")) for q in QS)
    yield 1.0, sheet.number(f"{key}_max")


def _normal(sheet: Sheet, kind: str) -> str | None:
    mean, deviation = (sheet.text(f"{name}_{kind}_tokens") for name in ("mean", "stddev"))
    return f"normal, mean {mean}, standard deviation {deviation or 'unknown'}" if mean is not None else None
