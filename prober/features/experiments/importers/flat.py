"""Flat files of vLLM's and SGLang's clients: `p99_ttft_ms`, and lists with one value per request if they were requested.

vLLM: `vllm bench serve --save-result`, with or without `--save-detailed`. SGLang: `python -m sglang.bench_serving --output-file`, one
line per run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from prober.features.experiments.importers.exported_object import ExportedObject, reported, stage_of_figures
from prober.results.result import Load, MeasuredTarget, RequestRow, Result, Stage
from prober.results.stage import stage_of_requests


@dataclass(frozen=True, slots=True)
class Flat:
    """A tool that writes flat files.

    names: the tool's name of each latency
    must: keys of every file of the tool
    differs: see `Result`
    """

    tool: str
    names: Mapping[str, str]
    must: tuple[str, ...]
    differs: tuple[str, ...]

    def recognises(self, values: Mapping[str, Any]) -> bool:
        """True if the object has this tool's keys."""
        return values.keys() >= set(self.must)

    def stage(self, exported: ExportedObject) -> Stage:
        """Stage with the figures of one run."""
        rate, cap = exported.number("request_rate"), exported.count("max_concurrency")
        name = f"{rate:g}/s" if rate is not None else f"concurrency {cap}" if cap is not None else "all at once"
        duration_s, completed = exported.number("duration"), exported.count("completed") or 0

        def seconds(name: str, figure: str) -> float | None:
            keys = {"p50": ("median", "p50"), "max": ("max", "p100")}.get(figure, (figure,))
            values = (exported.number(f"{key}_{name}_ms") for key in keys)
            return next((value / 1e3 for value in values if value is not None), None)

        figures = {latency: reported(partial(seconds, name), completed) for latency, name in self.names.items()}
        if requests := self._requests(exported):
            stage = stage_of_requests(name, rate, requests, begin_s=0.0, sending_s=None, duration_s=duration_s)
        else:
            prompts, failed = exported.count("num_prompts"), exported.count("failed")
            failed = prompts - completed if failed is None and prompts is not None else failed
            # The file does not have the number of gaps. Figures are those of --percentile-metrics.
            counts = {latency: 0 if latency == "itl" else completed for latency in figures}
            stage = stage_of_figures(name, rate, duration_s, completed, failed, figures, counts)
        goodput = exported.number("request_goodput")
        return replace(
            stage,
            reported={latency: values for latency, values in figures.items() if values},
            prompt_tokens=exported.number("total_input_tokens"),
            output_tokens=exported.number("total_output_tokens"),
            good=round(goodput * duration_s) if goodput is not None and duration_s is not None else None,
        )

    def result(self, exported_objects: list[ExportedObject], load: Load) -> Result:
        """Result with one stage per run; its settings are those of the first run."""
        first = exported_objects[0]
        backend = first.text("backend")  # `openai` is the protocol alone
        endpoint, apis = first.text("endpoint_type"), ("chat", "responses", "messages")
        stages = tuple(map(self.stage, exported_objects))
        seconds = sum(stage.duration_s or 0.0 for stage in stages)
        ended = first.unix_s("date")
        started = ended - seconds if ended is not None else 0.0
        return Result(
            id=first.source,
            kind="run" if len(exported_objects) == 1 else "grid",
            started_unix_s=started,
            ended_unix_s=started + seconds,
            tool=self.tool,
            target=MeasuredTarget(
                model=first.text("model_id"),
                engine=None if backend is None or backend.startswith("openai") else backend,
                api=None if endpoint is None else next((api for api in apis if api in endpoint), "completions"),
            ),
            load=load,
            stages=stages,
            differs=self.differs,
        )

    def _requests(self, exported: ExportedObject) -> tuple[RequestRow, ...]:
        """Requests from the lists with one value per request; empty if `ttfts` or `itls` is missing."""
        keys = ("ttfts", "itls", "latencies", "input_lens", "output_lens", "errors", "start_times")
        lists = {key: values for key in keys if (values := exported.rows(key)) is not None}
        if not {"ttfts", "itls"} <= lists.keys():
            return ()
        count = len(lists["ttfts"])
        for key, values in lists.items():
            if len(values) != count:
                raise exported.wrong((key,), f"{len(values)} values", f"the {count} of ttfts")
        begin = min(lists.get("start_times", ()), default=0.0)
        rows = ({key: values[i] for key, values in lists.items()} for i in range(count))
        return tuple(_request(ExportedObject(exported.source, row), begin) for row in rows)


def _request(row: ExportedObject, begin: float) -> RequestRow:
    error = row.text("errors") or ""
    gaps = tuple(float(gap_s) for gap_s in row.rows("itls") or ())
    ttft_s, output = row.number("ttfts") or None, row.count("output_lens") or None
    e2e_s = row.number("latencies") or (ttft_s + sum(gaps) if ttft_s is not None else None)
    decode_s = e2e_s - ttft_s if e2e_s is not None and ttft_s is not None else None
    return RequestRow(
        start_s=None if "start_times" not in row.values else row.get("start_times") - begin,
        outcome="failed" if error or ttft_s is None else "ok",
        error=error,
        ttft_s=ttft_s,
        itls_s=gaps,
        tpot_s=decode_s / (output - 1) if decode_s is not None and output is not None and output > 1 else None,
        e2e_s=e2e_s,
        prompt_tokens=row.count("input_lens"),
        output_tokens=output,
    )


SGLANG = Flat(
    tool="sglang.bench_serving",
    names={"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2e_latency"},
    must=("input_throughput", "output_throughput", "mean_e2e_latency_ms", "completed"),
    differs=(
        "TTFT and E2E count from when the request was sent, not from when it was due; its waits add up, so that fewer "
        "requests are sent than asked for.",
        "Some of its clients take a chunk with a role alone as the first token: TTFT is too low there.",
        "A stream that was cut, or that carries an error inside a 200, counts as a success, with the length asked for.",
    ),
)


def read_sglang(exported_objects: list[ExportedObject]) -> Result:
    """Result with one stage per line."""
    first = exported_objects[0]
    rate, cap = first.number("request_rate"), first.count("max_concurrency")
    ratio = first.number("random_range_ratio")
    prompt, output = (
        f"at most {length}" if (length := first.text(key)) is not None else None
        for key in ("random_input_len", "random_output_len")
    )
    load = Load(
        prompt_tokens=prompt,
        output_tokens=output,
        varied=ratio < 1.0 if ratio is not None else None,
        arrivals="closed" if cap is not None else "poisson" if rate is not None else "all at once",
        max_in_flight=cap,
        dataset=first.text("dataset_name"),
    )
    return SGLANG.result(exported_objects, load)


VLLM = Flat(
    tool="vllm bench serve",
    names={"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2e": "e2el"},
    must=("request_throughput", "total_input_tokens", "output_throughput", "model_id"),
    differs=(
        "TTFT and E2E count from when the request was sent, not from when it was due.",
        "In chat the first chunk counts as first token even if it carries a role alone: TTFT is too low there.",
        "ITL is the gap between chunks, however many tokens a chunk carries.",
        "A stream that was cut, or that carries an error inside a 200, counts as a success.",
        "With a maximum concurrency requests wait in the client, and TTFT leaves that wait out.",
        "Its date has no time zone: it is read as UTC.",
    ),
)


def read_vllm(exported: ExportedObject) -> Result:
    """Result of one run."""
    rate, cap = exported.number("request_rate"), exported.count("max_concurrency")
    burstiness = exported.number("burstiness")
    if cap is not None:
        arrivals: str | None = "closed"
    elif rate is None:
        arrivals = "all at once" if exported.get("request_rate") == "inf" else None
    else:
        arrivals = "poisson" if burstiness in (None, 1.0) else "gamma"
    load = Load(arrivals=arrivals, max_in_flight=cap, dataset=exported.text("dataset_name") or exported.text("dataset"))
    result = VLLM.result([exported], load)
    lengths = {
        name: [length for request in result.requests if request.outcome == "ok" and (length := getattr(request, name))]
        for name in ("prompt_tokens", "output_tokens")
    }
    seen = {name: f"{min(values)}–{max(values)}, as seen" for name, values in lengths.items() if values}
    prompts = lengths["prompt_tokens"]
    load = replace(load, prompt_tokens=seen.get("prompt_tokens"), output_tokens=seen.get("output_tokens"))
    return replace(result, load=replace(load, varied=len(set(prompts)) > 1 if prompts else None))
