"""The file of a result: the keys of `vllm bench serve --save-result`, and the complete result under `llm_slo_prober`.

Tools for vLLM's file get its lists with one value per request (seconds) and, if there is a single stage, its statistics
(milliseconds). Several stages have no common percentiles: those of every stage are under `llm_slo_prober.stages`, with the same
names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import orjson
from typing_extensions import TypedDict  # as pydantic needs it before Python 3.12

from prober.results.load_description import current_load
from prober.results.result import LATENCIES, OPEN_LOOP, OURS, Request, Result, Stage, Throughput
from prober.results.stage import mean_and_deviation, total
from prober.results.strict_json import Reader, Unreadable, dumps
from prober.statistics.quantiles import Quantile

KEY = "llm_slo_prober"
# 1: no stage has its own load. 2: no throughput, and a rate is reported to hold without evidence.
# 3: lengths are the `repr` of a distribution, and retry_after_s is in the configuration of the daemon's sweeps.
# 4: throughput is what was delivered while the stage was sending, and no request says when it was cut; the context has no sources, and
# neither weights, streaming nor the prober's host; no prompt_lengths, quality and reasoning; no queue time and prefix hits.
# 5: capacities have no curve.
FORMAT = 6
_NEW_KEYS: dict[str, Any] = {"context_sources": {}, "disagreements": [], "decode_limit": None}  # since format 4
_NEW_IN_USE = ("queue_mean_s", "prefix_hit_ratio")
_NEW_IN_CONTEXT = ("weights", "streaming", "prober_host")
_VLLM = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}


class _Requests(TypedDict):
    """Fields of the requests that vLLM's lists lack, or where they have 0 for an unknown value."""

    stage: list[int]
    outcome: list[str]
    tpot_s: list[float | None]
    send_lag_s: list[float | None]
    prompt_tokens: list[int | None]
    output_tokens: list[int | None]
    warm_up: list[bool]
    cached: list[bool]
    cut_s: list[float | None]


class _Own(TypedDict):
    requests: _Requests
    result: Result


class _File(TypedDict):
    """The parts of a file that are read."""

    start_times: list[float | None]
    errors: list[str]
    ttfts: list[float | None]
    itls: list[tuple[float, ...]]
    latencies: list[float | None]
    llm_slo_prober: _Own


_OWN = tuple(_Requests.__annotations__)
_READER = Reader(_File)
# Every list with one entry per request, as a JSON path in the file.
REQUEST_LISTS = tuple(
    f"$.{name}"
    for name in (
        *("ttfts", "input_lens", "output_lens", "itls", "latencies", "start_times", "errors"),
        *(f"{KEY}.requests.{name}" for name in _OWN),
    )
)


def to_json(result: Result) -> str:
    """The file's text."""
    rows = result.requests
    columns = {name: [getattr(row, name) for row in rows] for name in _OWN}
    stages = [{"name": stage.name, **statistics(result, (stage,))} for stage in result.stages]
    file = {
        **_run(result),
        **statistics(result, result.stages),
        "input_lens": [row.prompt_tokens or 0 for row in rows],
        "output_lens": [row.output_tokens or 0 for row in rows],
        "ttfts": [row.ttft_s or 0.0 for row in rows],
        "itls": [row.itls_s for row in rows],
        "latencies": [row.e2e_s or 0.0 for row in rows],
        "start_times": [row.start_s for row in rows],
        "errors": [row.error or ("" if row.outcome == "ok" else row.outcome) for row in rows],
        KEY: {"format": FORMAT, "stages": stages, "requests": columns, "result": replace(result, requests=())},
    }
    return dumps(file).decode()


def from_json(text: str | bytes, source: str) -> Result:
    """The result that `to_json` wrote. Raises Unreadable, which names `source` and the key."""
    try:
        return from_object(orjson.loads(text), source)
    except orjson.JSONDecodeError as problem:
        raise Unreadable(f"{source}: is no JSON: {problem}") from None


def from_object(document: Any, source: str) -> Result:
    """The result in parsed JSON. Raises Unreadable."""
    own = document.get(KEY) if isinstance(document, dict) else None
    if not isinstance(own, dict):
        raise Unreadable(f"{source}: {KEY}: is missing; this is no result of llm-slo-prober")
    version: Any = own.get("format")
    if version not in range(1, FORMAT + 1):
        raise Unreadable(
            f"{source}: {KEY}.format: is {version!r}, this prober reads 1 to {FORMAT}; use the version that wrote it"
        )
    if version != FORMAT and isinstance(own.get("result"), dict):
        upgraded: dict[str, Any] = {"result": _upgraded(own["result"], version)}
        if isinstance(rows := own.get("requests"), dict) and isinstance(rows.get("stage"), list):
            upgraded["requests"] = {"cut_s": [None] * len(rows["stage"])} | rows
        document = document | {KEY: own | upgraded}
    file: _File = _READER.read(document, source)
    result = file["llm_slo_prober"]["result"]
    return replace(result, requests=_requests(file, len(result.stages), source))


def statistics(result: Result, stages: Sequence[Stage]) -> dict[str, Any]:
    """vLLM's statistics of these stages; latencies (ms) and rates only for a single stage."""
    sent, answered = sum(stage.sent for stage in stages), sum(stage.answered for stage in stages)
    figures: dict[str, Any] = {
        "num_prompts": sent,
        "completed": answered,
        "failed": sent - answered,
        "duration": total(stage.duration_s for stage in stages),
        "total_input_tokens": total(stage.prompt_tokens for stage in stages),
        "total_output_tokens": total(stage.output_tokens for stage in stages),
    }
    if len(stages) != 1:
        return figures
    (stage,) = stages
    figures |= {
        "request_rate": stage.rate_per_s,
        "request_throughput": stage.requests_per_s,
        "request_goodput": stage.goodput_per_s,
        "output_throughput": stage.output_tokens_per_s,
        "input_throughput": stage.prompt_tokens_per_s,
        "total_token_throughput": total((stage.prompt_tokens_per_s, stage.output_tokens_per_s)),
    }
    if (delivered := stage.delivered) is not None:
        figures |= {
            "delivered_seconds": delivered.span_s,
            "delivered_requests": delivered.answers,
            "delivered_input_tokens": delivered.prompt_tokens,
            "delivered_output_tokens": delivered.output_tokens,
        }
    index = next(i for i, other in enumerate(result.stages) if other is stage)
    rows = [request for request in result.requests if request.stage == index]
    for latency in LATENCIES:
        name = _VLLM[latency]
        if (moments := mean_and_deviation(latency, rows)) is not None:
            figures[f"mean_{name}_ms"], figures[f"std_{name}_ms"] = (seconds * 1e3 for seconds in moments)
        for quantile in stage.latencies.get(latency, ()):
            if quantile.q == 0.5:
                figures[f"median_{name}_ms"] = quantile.estimate * 1e3
            figures[f"p{_percent(quantile)}_{name}_ms"] = quantile.estimate * 1e3
        for quantile in stage.at_least.get(latency, ()):
            figures[f"p{_percent(quantile)}_{name}_ms_at_least"] = quantile.estimate * 1e3
    return figures


def _percent(quantile: Quantile) -> str:
    return f"{float(f'{quantile.q * 100:.6g}'):g}"


def _run(result: Result) -> dict[str, Any]:
    target, load = result.target, result.load
    return {
        "date": datetime.fromtimestamp(result.started_unix_s, UTC).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": {"chat": "openai-chat", "completions": "openai"}.get(target.api or "", target.api),
        "backend": target.engine,
        "model_id": target.model,
        "burstiness": 1.0 if load.arrivals == "poisson" else None,
        "max_concurrency": None if load.arrivals in OPEN_LOOP else load.max_in_flight,
    }


def _requests(file: _File, stages: int, source: str) -> tuple[Request, ...]:
    """The rows of the columns. Raises Unreadable."""
    own = file["llm_slo_prober"]["requests"]
    columns: dict[str, Any] = dict(own) | dict(file)
    del columns[KEY]
    count = len(own["stage"])
    for name, column in columns.items():
        if len(column) != count:
            raise Unreadable(f"{source}: {name}: has {len(column)} values, {KEY}.requests.stage has {count}")
    for i, stage in enumerate(own["stage"]):
        if not 0 <= stage < stages:
            raise Unreadable(f"{source}: {KEY}.requests.stage[{i}]: is {stage}, but there are {stages} stages")
    return tuple(_request(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True))


def _request(row: Mapping[str, Any]) -> Request:
    return Request(
        **{name: row[name] for name in _OWN},
        start_s=row["start_times"],
        error="" if row["errors"] == row["outcome"] else row["errors"],
        ttft_s=row["ttfts"] or None,
        itls_s=row["itls"],
        e2e_s=row["latencies"] or None,
    )


def _upgraded(content: dict[str, Any], version: int) -> dict[str, Any]:
    """A result of an earlier format, converted to the current one; mistakes are left for the reader.

    Before format 3, the throughput of our own sweeps was wrong, so it becomes unknown, and a rate was reported to hold without
    evidence if the knee was not reached, so it becomes not enough data.
    """
    content = {"retry_after_s": _configured_retry_after_s(content.get("configuration"))} | content
    content = _NEW_KEYS | content
    if isinstance(rows := content.get("capacities"), list):
        content |= {"capacities": [{"curve": []} | row if isinstance(row, dict) else row for row in rows]}
    if isinstance(content.get("context"), dict):
        content |= {"context": dict.fromkeys(_NEW_IN_CONTEXT) | content["context"]}
    if "load" in content:
        content |= {"load": current_load(content["load"])}
    swept = version < 3 and content.get("kind") in ("sweep", "grid") and str(content.get("tool")).startswith(OURS)
    missing: dict[str, Any] = {"delivered": None, "at_least": {}} | ({"load": None} if version == 1 else {})
    if version < 5:
        missing |= {"prompt_lengths": None, "quality": None, "reasoning": None, "disturbance": None, "series": []}
        missing |= {"adapters": None, "tool_calls": None, "contrast": None}
    if version < 3:
        missing |= {"throughput": asdict(Throughput()) if swept else None}

    def upgraded_stage(stage: dict[str, Any]) -> dict[str, Any]:
        if version in (3, 4) and (delivered := stage.get("throughput")) is not None:
            stage = stage | {"throughput": asdict(Throughput()), "delivered": _delivered(delivered, stage)}
        if isinstance(stage.get("use"), dict):
            stage = stage | {"use": dict.fromkeys(_NEW_IN_USE) | stage["use"]}
        return missing | stage | ({"load": current_load(stage["load"])} if "load" in stage else {})

    lists = {"stages": upgraded_stage} | ({"capacities": _without_claim} if version < 3 else {})
    return content | {
        key: [change(part) if isinstance(part, dict) else part for part in content[key]]
        for key, change in lists.items()
        if isinstance(content.get(key), list)
    }


def _delivered(per_s: Any, stage: dict[str, Any]) -> dict[str, Any] | None:
    """The count of rates that a stage delivered while it was sending; None for values that are no such rates."""
    try:
        span_s = float(stage["sending_s"])
        rates = [per_s[f"{name}_per_s"] for name in ("requests", "prompt_tokens", "output_tokens")]
        answers, prompt, output = (None if rate is None else round(rate * span_s) for rate in rates)
    except (KeyError, TypeError, ValueError):
        return None
    return {"span_s": span_s, "answers": answers or 0, "prompt_tokens": prompt, "output_tokens": output}


def _configured_retry_after_s(configuration: Any) -> float:
    """The value that an earlier daemon kept in the text of the configuration."""
    try:
        return float(orjson.loads(configuration or "{}").get("retry_after_s", 0.0))
    except (ValueError, TypeError, AttributeError):  # of a command, or of another tool
        return 0.0


def _without_claim(capacity: dict[str, Any]) -> dict[str, Any]:
    """A capacity without the claim that a rate holds."""
    unknown = {"verdict": "not_enough_data", "lower": None} if capacity.get("verdict") == "not_reached" else {}
    return {"evidence": None} | capacity | unknown
