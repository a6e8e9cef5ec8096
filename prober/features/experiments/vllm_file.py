"""Reads a run written by `vllm bench serve --save-result`: figures such as `p99_ttft_ms`, and with `--save-detailed` its requests."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from prober.results.facts import Context
from prober.results.result import Load, MeasuredTarget, RequestRow, Result, Stage
from prober.results.result_file import VLLM_NAMES
from prober.results.stage import is_stated, stage_of_requests
from prober.results.strict_json import Unreadable
from prober.statistics.quantiles import REPORTED_QUANTILES, Quantile, percentile_name

T = TypeVar("T")
TOOL = "vllm bench serve"
QUANTILES = {percentile_name(q): q for q in REPORTED_QUANTILES}
KEYS = {"request_throughput", "total_input_tokens", "output_throughput", "model_id"}  # in every file of vLLM
OTHERS_KEY = "input_throughput"  # in clients that use vLLM's names, some with another meaning
# Texts that have their own place in a result. Any other is a setting stated by the user (`--label`, `--metadata tp=4`).
_TEXTS = "date endpoint_type backend model_id tokenizer_id request_rate ramp_up_strategy dataset_name"
KNOWN_TEXTS = frozenset(_TEXTS.split())
DIFFERS = (
    "TTFT and E2E count from when the request was sent, not from when it was due.",
    "In chat the first chunk counts as first token even if it carries a role alone: TTFT is too low there.",
    "ITL is the gap between chunks, however many tokens a chunk carries.",
    "A stream that was cut, or that carries an error inside a 200, counts as a success.",
    "With a maximum concurrency requests wait in the client, and TTFT leaves that wait out.",
    "Its date has no time zone: it is read as UTC.",
)
WITHOUT_REQUESTS = "The file has no requests, so its figures have no intervals; `--save-detailed` writes them."


def recognises(values: Mapping[str, Any]) -> bool:
    """True if the object is a run of vLLM's client."""
    return values.keys() >= KEYS and OTHERS_KEY not in values


@dataclass(frozen=True, slots=True)
class _Values:
    """Typed access to values by key: an absent one is None, a wrong type raises Unreadable. source: name of the file, for errors"""

    source: str
    values: Mapping[str, Any]

    def number(self, key: str) -> float | None:
        """Read a number; None also for an infinite one, which is written as text."""
        value = self.values.get(key)
        if value is None or value == "inf":
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, repr(value)[:40], "a number")
        return float(value)

    def count(self, key: str) -> int | None:
        """Read a number, rounded to an integer."""
        value = self.number(key)
        return None if value is None else round(value)

    def get(self, key: str, kind: type[T]) -> T | None:
        """Read a text or a list."""
        value = self.values.get(key)
        if value is not None and not isinstance(value, kind):
            raise self.wrong(key, repr(value)[:40], f"a {'text' if kind is str else 'list'}")
        return value or None

    def wrong(self, key: str, value: str, expected: str) -> Unreadable:
        """Error with file, key and value."""
        return Unreadable(f"{self.source}: {key}: is {value}, not {expected}")


def read(values: Mapping[str, Any], source: str) -> Result:
    """Read the result of a run. Raises Unreadable, which names `source` and the key."""
    run = _Values(source, values)
    rate, cap, burstiness = run.number("request_rate"), run.count("max_concurrency"), run.number("burstiness")
    requests = _requests(run)
    if run.get("ramp_up_strategy", str):
        rate, name = None, f"{run.number('ramp_up_start_rps'):g}/s to {run.number('ramp_up_end_rps'):g}/s"
        arrivals = f"poisson ({run.get('ramp_up_strategy', str)} rise from {name})"
    elif rate is not None:
        name, arrivals = f"{rate:g}/s", "poisson" if burstiness in (None, 1.0) else f"gamma (burstiness {burstiness:g})"
    else:
        name = f"concurrency {cap}" if cap is not None else "all at once"
        arrivals = "all at once" if values.get("request_rate") == "inf" else ""
    if cap is not None:
        arrivals = "closed"
    answered = [request for request in requests if request.outcome == "ok"]
    prompts, outputs = (
        [length for request in answered if (length := getattr(request, name))]
        for name in ("prompt_tokens", "output_tokens")
    )
    stage = _stage(run, name, rate, requests)
    ended, backend, endpoint = _unix_s(run), run.get("backend", str), run.get("endpoint_type", str) or ""
    started = ended - (stage.duration_s or 0.0) if ended is not None else 0.0
    tokenizer = run.get("tokenizer_id", str)
    return Result(
        id=source,
        kind="run",
        started_unix_s=started,
        ended_unix_s=started + (stage.duration_s or 0.0),
        tool=TOOL,
        target=MeasuredTarget(
            model=run.get("model_id", str),
            engine=None if backend is None or backend.startswith("openai") else backend,  # `openai` is only the API
            api=next(
                (api for api in ("chat", "responses", "messages") if api in endpoint),
                "completions" if endpoint else None,
            ),
            flags={
                key: value
                for key, value in values.items()
                if isinstance(value, str) and value and key not in KNOWN_TEXTS
            },
        ),
        load=Load(
            prompt_tokens=_as_seen(prompts, stage.prompt_tokens_per_request),
            output_tokens=_as_seen(outputs, stage.output_tokens_per_request),
            varied=len(set(prompts)) > 1 if prompts else None,
            arrivals=arrivals or None,
            max_in_flight=cap,
            dataset=run.get("dataset_name", str),
        ),
        stages=(stage,),
        context=Context(tokenizer=tokenizer),
        context_sources={} if tokenizer is None else {"tokenizer": "the file"},
        differs=DIFFERS if requests else (*DIFFERS, WITHOUT_REQUESTS),
    )


def _stage(run: _Values, name: str, rate_per_s: float | None, requests: tuple[RequestRow, ...]) -> Stage:
    """The figures of a run, from its requests if the file has them, or else the file's, without confidence intervals."""
    duration_s, completed = run.number("duration"), run.count("completed") or 0
    reported: dict[str, dict[str, float]] = {}
    for latency, key in VLLM_NAMES.items():
        names = ("mean", "std", *(figure for figure, q in QUANTILES.items() if is_stated(q, completed)))
        keys = {"p50": ("median", "p50"), "max": ("p100",)}
        known = ((figure, run.number(f"{other}_{key}_ms")) for figure in names for other in keys.get(figure, (figure,)))
        figures = {figure: ms / 1e3 for figure, ms in known if ms is not None}
        if any(figures.values()):  # without answers or chunks, the tool writes zeros
            reported[latency] = figures
    if requests:
        stage = stage_of_requests(name, rate_per_s, requests, begin_s=0.0, sending_s=None, duration_s=duration_s)
    else:
        sent, failed = run.count("num_prompts"), run.count("failed")
        failed = sent - completed if failed is None and sent is not None else failed
        stage = Stage(
            name=name,
            rate_per_s=rate_per_s,
            begin_s=0.0,
            sending_s=None,
            duration_s=duration_s,
            sent=completed + (failed or 0),
            answered=completed,
            outcomes={} if failed is None else {"ok": completed, **({"failed": failed} if failed > 0 else {})},
            latencies={
                # the file lacks the number of gaps
                latency: tuple(
                    Quantile(q, figures[figure], None, None, 0 if latency == "itl" else completed)
                    for figure, q in QUANTILES.items()
                    if figure in figures
                )
                for latency, figures in reported.items()
            },
        )
    goodput = run.number("request_goodput")
    return replace(
        stage,
        reported=reported,
        prompt_tokens=run.number("total_input_tokens") or None,
        output_tokens=run.number("total_output_tokens") or None,
        good=round(goodput * duration_s) if goodput is not None and duration_s is not None else None,
    )


def _requests(run: _Values) -> tuple[RequestRow, ...]:
    """Requests from the lists with one value per request; empty without `ttfts` or `itls`."""
    keys = ("ttfts", "itls", "latencies", "input_lens", "output_lens", "errors", "start_times")
    lists = {key: values for key in keys if (values := run.get(key, list)) is not None}
    if not {"ttfts", "itls"} <= lists.keys():
        return ()
    count = len(lists["ttfts"])
    for key, values in lists.items():
        if len(values) != count:
            raise run.wrong(key, f"a list of {len(values)}", f"of {count} as ttfts")
    begin_s = min(lists.get("start_times", ()), default=0.0)
    rows = ({key: values[i] for key, values in lists.items()} for i in range(count))
    return tuple(_request(_Values(run.source, row), begin_s) for row in rows)


def _request(row: _Values, begin_s: float) -> RequestRow:
    error, start_s = row.get("errors", str) or "", row.number("start_times")
    gaps = tuple(float(gap_s) for gap_s in row.get("itls", list) or ())
    ttft_s, output = row.number("ttfts") or None, row.count("output_lens") or None
    e2e_s = row.number("latencies") or (ttft_s + sum(gaps) if ttft_s is not None else None)
    decode_s = e2e_s - ttft_s if e2e_s is not None and ttft_s is not None else None
    return RequestRow(
        start_s=None if start_s is None else start_s - begin_s,
        outcome="failed" if error or ttft_s is None else "ok",
        error=error,
        ttft_s=ttft_s,
        itls_s=gaps,
        tpot_s=decode_s / (output - 1) if gaps and decode_s is not None and output is not None and output > 1 else None,
        e2e_s=e2e_s,
        prompt_tokens=row.count("input_lens"),
        output_tokens=output,
    )


def _as_seen(lengths: list[int], mean: float | None) -> str | None:
    """Describe lengths by their range, or without requests by their mean."""
    if lengths:
        return f"{min(lengths)}–{max(lengths)}, as seen"
    return None if mean is None else f"{mean:.4g} in the mean, as seen"


def _unix_s(run: _Values) -> float | None:
    """End of the run from its `date`, such as `20261120-101500`, read as UTC; None if it has another form."""
    try:
        return datetime.strptime(run.get("date", str) or "", "%Y%m%d-%H%M%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
