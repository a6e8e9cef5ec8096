"""The file of a result: the keys of `vllm bench serve --save-result`, and the complete result under `llm_slo_prober`.

Tools that read vLLM's file find its lists with one value per request (seconds) and, if there is a single stage, its statistics
(milliseconds). Several stages have no common percentiles: those of each stage are under `llm_slo_prober.stages`, with the same names.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import orjson
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from prober.results.result import LATENCIES, RequestRow, Result, Stage
from prober.results.stage import moments, total
from prober.results.strict_json import Reader, Unreadable, dumps

KEY = "llm_slo_prober"
FORMAT = 10
VLLM_NAMES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"}


class _Requests(TypedDict):
    """Lists with one value per request: the index of its stage, and fields that vLLM's file lacks or writes as 0 if unknown."""

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
    """The parts of a file that the prober reads."""

    start_times: list[float | None]
    errors: list[str]
    ttfts: list[float | None]
    itls: list[tuple[float, ...]]
    latencies: list[float | None]
    llm_slo_prober: _Own


_OWN = tuple(name for name in _Requests.__annotations__ if name != "stage")
_READER = Reader(_File)


def to_json(result: Result, verdicts: Sequence[object] = ()) -> str:
    """Write the text of the file. verdicts: dataclasses stored for other programs, which are not read again"""
    rows, target, load = result.requests, result.target, result.load
    columns = {name: [getattr(row, name) for row in rows] for name in _OWN}
    columns["stage"] = [index for index, stage in enumerate(result.stages) for _ in stage.requests]
    stages = [{"name": stage.name, **statistics((stage,))} for stage in result.stages]
    file: dict[str, Any] = {
        "date": datetime.fromtimestamp(result.started_unix_s, UTC).strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": {"chat": "openai-chat", "completions": "openai"}.get(target.api or "", target.api),
        "backend": target.engine,
        "model_id": target.model,
        "burstiness": 1.0 if load.arrivals == "poisson" else None,
        "max_concurrency": None if load.is_open_loop else load.max_in_flight,
        **statistics(result.stages),
        "input_lens": [row.prompt_tokens or 0 for row in rows],
        "output_lens": [row.output_tokens or 0 for row in rows],
        "ttfts": [row.ttft_s if row.is_answered else row.ttft_s or 0.0 for row in rows],
        "itls": [row.itls_s for row in rows],
        "latencies": [row.e2e_s or 0.0 for row in rows],
        "start_times": [row.start_s for row in rows],
        "errors": [row.error or ("" if row.outcome == "ok" else row.outcome) for row in rows],
        KEY: {"format": FORMAT, "stages": stages, "requests": columns, "result": result.without_requests()},
    }
    if verdicts:
        file[KEY]["verdicts"] = verdicts
    return dumps(file).decode()


def from_json(text: str | bytes, source: str) -> Result:
    """Read the result that `to_json` wrote. Raises Unreadable, which names `source` and the key."""
    try:
        return from_object(orjson.loads(text), source)
    except orjson.JSONDecodeError as problem:
        raise Unreadable(f"{source}: is no JSON: {problem}") from None


def from_object(document: Any, source: str) -> Result:
    """Read the result from parsed JSON. Raises Unreadable."""
    own = document.get(KEY) if isinstance(document, dict) else None
    if not isinstance(own, dict):
        raise Unreadable(f"{source}: {KEY}: is missing; this is no result of llm-slo-prober")
    if own.get("format") != FORMAT:
        raise Unreadable(
            f"{source}: {KEY}.format: is {own.get('format')!r}, this prober reads {FORMAT}; use the version that wrote it"
        )
    file: _File = _READER.read(document, source)
    result = file["llm_slo_prober"]["result"]
    requests: list[list[RequestRow]] = [[] for _ in result.stages]
    for stage, row in _rows(file, len(result.stages), source):
        requests[stage].append(row)
    pairs = zip(result.stages, requests, strict=True)
    return replace(result, stages=tuple(replace(stage, requests=tuple(rows)) for stage, rows in pairs))


def statistics(stages: Sequence[Stage]) -> dict[str, Any]:
    """vLLM's statistics of these stages; latencies (ms) and rates only for a single stage."""
    unanswered = total(stage.unanswered for stage in stages) if stages else 0
    figures: dict[str, Any] = {
        "num_prompts": None if unanswered is None else sum(stage.sent for stage in stages),
        "completed": sum(stage.answered for stage in stages),
        "failed": unanswered,
        "duration": total(stage.duration_s for stage in stages),
        "total_input_tokens": total(stage.prompt_tokens for stage in stages),
        "total_output_tokens": total(stage.output_tokens for stage in stages),
    }
    if len(stages) != 1:
        return figures
    (stage,) = stages
    amounts = {  # as in vLLM: of the answers, until the last one ended; those at the rate are in `Stage.throughput`
        "request_throughput": stage.answered,
        "request_goodput": stage.good,
        "output_throughput": stage.output_tokens,
        "input_throughput": stage.prompt_tokens,
        "total_token_throughput": total((stage.prompt_tokens, stage.output_tokens)),
    }
    figures["request_rate"] = stage.rate_per_s
    figures |= {
        name: amount / stage.duration_s if amount is not None and stage.duration_s else None
        for name, amount in amounts.items()
    }
    if (delivered := stage.delivered) is not None:
        figures |= {
            "delivered_seconds": delivered.span_s,
            "delivered_requests": delivered.answers,
            "delivered_input_tokens": delivered.prompt_tokens,
            "delivered_output_tokens": delivered.output_tokens,
        }
    for latency in LATENCIES:
        name = VLLM_NAMES[latency]
        for moment, seconds in zip(("mean", "std"), moments(stage, latency), strict=True):
            if seconds is not None:
                figures[f"{moment}_{name}_ms"] = seconds * 1e3
        for quantile in stage.latencies.get(latency, ()):
            if quantile.q == 0.5:
                figures[f"median_{name}_ms"] = quantile.estimate * 1e3
            figures[f"p{quantile.q * 100:g}_{name}_ms"] = quantile.estimate * 1e3
        for quantile in stage.at_least.get(latency, ()):
            figures[f"p{quantile.q * 100:g}_{name}_ms_at_least"] = quantile.estimate * 1e3
    return figures


def _rows(file: _File, stages: int, source: str) -> Iterator[tuple[int, RequestRow]]:
    """Yield (index of the stage, request) from the lists of a file. Raises Unreadable."""
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
    for values in zip(*columns.values(), strict=True):
        row = dict(zip(columns, values, strict=True))
        yield (
            row["stage"],
            RequestRow(
                **{name: row[name] for name in _OWN},
                start_s=row["start_times"],
                error="" if row["errors"] == row["outcome"] else row["errors"],
                ttft_s=row["ttfts"] or None,
                itls_s=row["itls"],
                e2e_s=row["latencies"] or None,
            ),
        )
