"""Tables of a result's stages: latency, throughput, engine and GPUs, outcomes, cost, repeats."""

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median

from prober.features.experiments.report import plots
from prober.features.experiments.report.document import UNKNOWN, Cell, Note, Table
from prober.measure.timeline_text import format_duration
from prober.results.capacity import Capacity
from prober.results.conditions import Line, differing, lines
from prober.results.cost import Cost, stage_cost, tokens_per_s_per_user
from prober.results.result import LATENCIES, Result, Stage, Use
from prober.results.stage import moments, samples, total
from prober.statistics.quantiles import Quantile

Row = list[Cell | str]


def latencies(result: Result) -> Table | None:
    """Quantiles, mean and standard deviation of each latency of each stage."""
    rows: list[Row] = []
    for place, stage in enumerate(result.stages):
        requests = [request for request in result.requests if request.stage == place]
        anchor = plots.stage_id(result, stage)
        for latency in LATENCIES:
            bounds = {quantile.q: quantile for quantile in stage.at_least.get(latency, ())}
            quantiles = bounds | {quantile.q: quantile for quantile in stage.latencies.get(latency, ())}
            reported = stage.reported.get(latency, {})
            if quantiles or reported:
                count = max((quantile.count for quantile in quantiles.values()), default=0)
                rows.append(
                    [
                        Cell(stage.name, id=anchor),
                        plots.NAMES[latency],
                        f"{count:,}" if count else UNKNOWN,
                        *(_quantile(quantiles.get(q), is_bound=q in bounds) for q in _QS),
                        number(stage.tail_ratio(latency)),
                        *map(_duration, moments(stage, latency, requests)),
                    ]
                )
                anchor = ""
            if requests and reported:
                stated = [_duration(reported.get("max" if q == 1 else f"p{q * 100:g}")) for q in _QS]
                own = [*stated, "–", _duration(reported.get("mean")), _duration(reported.get("std"))]
                rows.append([stage.name, f"{plots.NAMES[latency]}, {AS_THE_FILE_SAYS}", "–", *own])
    head = ["stage", "latency", "#samples", *(f"#{'max' if q == 1 else f'p{q * 100:g}'}" for q in _QS), "#p99/p50"]
    head += ["#mean", "#std. deviation"]
    return Table(head, rows) if rows else None


def contradictions(result: Result) -> Iterator[str]:
    """A sentence for each latency of a stage whose requests do not have the figures that its file states.

    A quantile that a tool interpolates is between two requests; a rank and MAX_APART beside them are allowed.
    """
    for place, stage in enumerate(result.stages):
        of_stage = samples(request for request in result.requests if request.stage == place)
        for latency, reported in stage.reported.items():
            values = sorted(of_stage[latency])
            last = len(values) - 1
            for name, stated_s in reported.items() if values else ():
                if name == "std":
                    continue
                low = high = ours_s = fmean(values)
                if name != "mean":
                    rank = last * (1.0 if name == "max" else float(name[1:]) / 100)
                    low, high = values[max(0, math.floor(rank) - 1)], values[min(last, math.ceil(rank) + 1)]
                    ours_s = values[math.ceil(rank)]
                if not low * (1 - MAX_APART) <= stated_s <= high * (1 + MAX_APART):
                    yield (
                        f"{stage.name}: the file contradicts itself, so do not rely on it: {plots.NAMES[latency]} {name} is "
                        f"{format_duration(ours_s)} by its requests, and {format_duration(stated_s)} by its own figure"
                    )
                    break


AS_THE_FILE_SAYS = "as the file says"
MAX_APART = 0.05  # between a figure of a file and that of its requests
_QS = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
_FEW_QS = (0.5, 0.9, 0.95, 0.99)
LATENCY_NOTE = (
    "In brackets the distribution-free 95% interval, ? where the samples give no bound. * marks too few samples: under 1,000 "
    "for p99, 200 for p95, 100 for p90, 100,000 for p99.9; nothing should rest on those. The gaps of one answer are alike, so "
    "the intervals of ITL are by answer and not by gap; its samples are gaps. ≥ marks a quantile of which only a bound is known, "
    "because requests were cut in flight when the sending ended; TPOT is absent where more than 5% were cut. "
    "Mean and standard deviation are no basis of a verdict; they are unknown where some requests were cut, or the file has neither "
    'requests nor these figures. p99.9 is stated of 1,000 samples or more; of fewer it is their maximum. A row "as the file says" has '
    "the figures that another tool states itself. It interpolates a quantile between two requests; the one above it is the request at "
    "rank ceil(q × samples), so it is the same or higher, most of all in the tail of few requests."
)


def _quantiles(quantiles: Sequence[Quantile], qs: Sequence[float] = _FEW_QS) -> list[Cell]:
    return [_quantile(next((quantile for quantile in quantiles if quantile.q == q), None)) for q in qs]


def _quantile(quantile: Quantile | None, *, is_bound: bool = False) -> Cell:
    if quantile is None:
        return UNKNOWN
    if is_bound:
        return Cell(f"≥ {format_duration(quantile.estimate)}", "few")
    text = format_duration(quantile.estimate)
    if quantile.q == 1.0:
        return Cell(text)
    low, high = ("?" if bound is None else format_duration(bound) for bound in (quantile.lower, quantile.upper))
    interval = "" if quantile.lower is None and quantile.upper is None else f"[{low}, {high}]"
    return Cell(text, "", interval) if quantile.has_enough_samples else Cell(f"{text} *", "few", interval)


def _duration(seconds: float | None) -> Cell | str:
    return UNKNOWN if seconds is None else format_duration(seconds)


def throughput(result: Result) -> Table | None:
    """Rates of requests and tokens of each stage."""
    rows: list[Row] = [
        [
            stage.name,
            number(stage.rate_per_s),
            number(stage.demand_per_s),
            number(stage.duration_s),
            UNKNOWN if stage.unanswered is None else f"{stage.sent:,}",
            number(stage.requests_per_s),
            number(stage.goodput_per_s),
            number(stage.prompt_tokens_per_s),
            number(stage.output_tokens_per_s),
            number(total((stage.prompt_tokens_per_s, stage.output_tokens_per_s))),
            number(stage.prompt_tokens_per_s_per_gpu),
            number(stage.output_tokens_per_s_per_gpu),
            number(stage.delivered.prompt_tokens_per_s if stage.delivered else None),
            number(stage.delivered.output_tokens_per_s if stage.delivered else None),
            number(stage.prompt_lengths.asked / stage.prompt_lengths.requests if stage.prompt_lengths else None),
            number(stage.prompt_tokens_per_request),
            number(stage.output_tokens_per_request),
            f"{stage.quality[1]} of {stage.quality[0]}" if stage.quality else UNKNOWN,
            stage.ended or UNKNOWN,
        ]
        for stage in result.stages
    ]
    head = [
        *("stage", "#added /s", "#there already /s", "#s", "#sent", "#answered /s", "#goodput /s", "#prompt tokens/s"),
        *(
            "#output tokens/s",
            "#tokens/s",
            "#prompt tokens/s a GPU",
            "#output tokens/s a GPU",
            "#prompt tokens/s delivered",
        ),
        *("#output tokens/s delivered", "#prompt tokens asked", "#prompt tokens a request", "#output tokens a request"),
        *("#wrong of checked answers", "ended by"),
    ]
    return Table(head, rows) if rows else None


def tool_calls(result: Result) -> Table | None:
    """Tool calls of each stage, and the times of the first one of an answer."""
    rows: list[Row] = [
        [
            stage.name,
            f"{calls.answers:,}",
            f"{calls.calling:,}",
            f"{calls.calls:,}",
            *_quantiles(calls.ttft_call, (0.5, 0.99)),
            *_quantiles(calls.arguments, (0.5, 0.99)),
        ]
        for stage in result.stages
        if (calls := stage.tool_calls) is not None
    ]
    times = (f"#{name} {q}" for name in ("first call", "its arguments") for q in ("p50", "p99"))
    return Table(["stage", "#answers", "#with a call", "#calls", *times], rows) if rows else None


THROUGHPUT_NOTE = (
    "Answers, goodput and tokens per second are those of the target at the stage's rate: the rate, times the share of the stage's "
    "requests that were answered (goodput: and good by every SLO), times the mean tokens of a request. They are unknown where the "
    "stage is too short to show that the target keeps up with the rate; where it falls behind, they are those delivered once it "
    "was full. Delivered: received while the stage was sending, by the times of the chunks, for requests of earlier stages too; "
    "prompt tokens at the first token. Of another tool: of its requests over its duration. Output tokens are the server's count."
)


def series(result: Result) -> Table | None:
    """TTFT and cached prompt tokens of the parts of each stage: turns, warm and cold prefixes, workloads of a mix."""
    rows: list[Row] = [
        [
            stage.name,
            part.name,
            f"{part.requests:,}",
            *_quantiles(part.ttft),
            f"{part.cached_tokens / part.prompt_tokens * 100:.3g}%" if part.prompt_tokens else UNKNOWN,
            f"{part.unanswered:,}: {part.reason}" if part.unanswered else "0",
        ]
        for stage in result.stages
        for part in stage.series
    ]
    quantiles = (f"#TTFT p{q * 100:g}" for q in _FEW_QS)
    head = ["stage", "part", "#answers", *quantiles, "#prompt tokens cached", "not answered"]
    return Table(head, rows) if rows else None


def reasoning(result: Result) -> Table | None:
    """Tokens of reasoning and of the answer, and the time to the first token of the answer, of each stage with reasoning."""
    rows: list[Row] = [
        [
            stage.name,
            f"{part.requests:,}",
            *(number(n / part.counted if part.counted else None) for n in (part.reasoning_tokens, part.answer_tokens)),
            *_quantiles(part.ttft_answer),
            f"{part.unanswered:,}",
        ]
        for stage in result.stages
        if (part := stage.reasoning) is not None
    ]
    head = ["stage", "#answers with reasoning", "#reasoning tokens, mean", "#answer tokens, mean"]
    head += [*(f"#first answer token p{q * 100:g}" for q in _FEW_QS), "#ended before the answer"]
    return Table(head, rows) if rows else None


def use(result: Result) -> Table | None:
    """Values of the engine's page and the GPUs during each stage; None if nothing was read."""
    if all(stage.use == Use() for stage in result.stages):
        return None
    rows: list[Row] = [
        [stage.name, *(_use_value(name, getattr(stage.use, name)) for name in _USE)] for stage in result.stages
    ]
    return Table(["stage", *(f"#{label}" for label in _USE.values())], rows)


USE_NOTE = "Unknown where it is not shown: neither the engine's page nor its GPUs were read."


_USE = {
    "running_mean": "running",
    "waiting_mean": "waiting",
    "waiting_peak": "waiting, peak",
    "queue_mean_s": "time in the queue, mean",
    "prefix_hit_ratio": "prefix cache hits",
    "kv_usage_peak_ratio": "KV cache, peak",
    "preemptions": "preemptions",
    "gpu_utilization_mean_ratio": "GPU",
    "gpu_utilization_peak_ratio": "GPU, peak",
    "gpu_memory_peak_ratio": "GPU memory, peak",
    "memory_bandwidth_peak_ratio": "memory bandwidth, peak",
    "power_mean_watts": "power, W",
    "power_peak_watts": "power, peak, W",
}


def _use_value(name: str, value: float | None) -> Cell | str:
    if value is None:
        return UNKNOWN
    if name.endswith("_s"):
        return format_duration(value)
    return f"{value * 100:.3g}%" if name.endswith("_ratio") else number(value)


def shapes(result: Result) -> Table | None:
    """Load of each stage; None if it is the same for all."""
    loads = [(stage, stage.load or result.load) for stage in result.stages]
    if all(load == result.load for _, load in loads):
        return None
    rows: list[Row] = [
        [
            stage.name,
            *(UNKNOWN if text is None else text for text in (load.prompt_tokens, load.output_tokens, load.arrivals)),
        ]
        for stage, load in loads
    ]
    return Table(["stage", "prompt tokens", "output tokens", "arrivals"], rows)


def outcomes(result: Result) -> Table | None:
    """Number of requests by outcome, the refused ones with their reason, and share of unanswered ones."""
    if not any(stage.outcomes or stage.sent for stage in result.stages):
        return None
    rows: list[Row] = [
        [
            stage.name,
            "; ".join(
                filter(
                    None,
                    (
                        ", ".join(f"{n:,} {outcome}" for outcome, n in stage.outcomes.items())
                        or f"{stage.answered:,} ok",
                        str(stage.refused),
                    ),
                )
            ),
            f"{unanswered / stage.sent * 100:.3g}%"
            if stage.sent and (unanswered := stage.unanswered) is not None
            else UNKNOWN,
        ]
        for stage in result.stages
    ]
    return Table(["stage", "requests by outcome", "#not answered"], rows)


def costs(result: Result) -> Table | None:
    """Price per million tokens, and speed per GPU and per user, of each stage; None without a price."""
    if result.prices.gpu_per_hour is None:
        return None
    rows: list[Row] = []
    for stage in result.stages:
        price = stage_cost(stage, result.prices) or Cost(None, None, None)
        figures = (
            price.prompt,
            price.output,
            price.total,
            stage.output_tokens_per_s_per_gpu,
            tokens_per_s_per_user(stage),
        )
        rows.append([stage.name, *map(number, figures)])
    head = ["stage", "#$ a million prompt tokens", "#$ a million output tokens", "#$ a million tokens"]
    return Table([*head, "#output tokens/s a GPU", "#tokens/s a user"], rows)


COST_NOTE = (
    "Dollars per million tokens = GPUs × dollars per GPU and hour ÷ 3600 ÷ tokens per second at the stage's rate × 1,000,000; unknown "
    "with them. Each column bears the whole price of the GPUs: they are three ways to say it, not parts of one sum. Only the prober's "
    "own tokens count, so that the price is lower where the GPUs serve others too. Tokens/s a user are 1 ÷ the median TPOT."
)


def repeats(results: plots.NamedResults) -> Table | None:
    """Stages that were measured more than once under the same conditions, in one result or in several."""
    groups: dict[tuple[object, ...], list[tuple[int, Stage]]] = {}
    for line in lines(results):
        for stage in line.stages:
            groups.setdefault((*_pooled(line), stage.name, stage.rate_per_s), []).append((line.place, stage))
    rows: list[Row] = [
        [
            group[0][1].name,
            number(group[0][1].rate_per_s),
            str(len(group)),
            str(len({place for place, _ in group})),
            *(spread([figure(stage) for _, stage in group]) for figure in _REPEATED.values()),
        ]
        for group in groups.values()
        if len(group) > 1
    ]
    head = ["stage", "#rate /s", "#times", "#results", *(f"#{label}" for label in _REPEATED)]
    return Table(head, rows) if rows else None


def capacities(results: plots.NamedResults) -> Table | None:
    """Capacities of the sweeps of one configuration, by SLO; None for fewer than two sweeps."""
    runs: dict[tuple[object, ...], list[Result]] = {}
    for place, (_, result) in enumerate(results):
        if result.capacities:
            key = tuple(_pooled(line) for line in lines(results) if line.place == place)
            runs.setdefault(key, []).append(result)
    rows: list[Row] = []
    for repeated in (sweeps for sweeps in runs.values() if len(sweeps) > 1):
        by_slo: dict[str, list[Capacity]] = {}
        for capacity in (capacity for result in repeated for capacity in result.capacities):
            by_slo.setdefault(capacity.slo, []).append(capacity)
        for slo, of_slo in by_slo.items():
            known = [capacity for capacity in of_slo if capacity.verdict == "found"]
            unknown = dict.fromkeys(capacity.verdict.replace("_", " ") for capacity in of_slo if capacity not in known)
            rows.append(
                [
                    slo,
                    str(len(repeated)),
                    str(len(known)),
                    spread([capacity.estimate for capacity in known]),
                    spread([capacity.own.per_s if capacity.own is not None else None for capacity in known]),
                    ", ".join(unknown) or "–",
                ]
            )
    head = ["SLO", "#runs", "#estimated", "#estimated knee /s", "#alone /s", "other verdicts"]
    return Table(head, rows) if rows else None


REPEATS_NOTE = (
    "Each figure is the median over the repeats, with the least and the most, and half of the way between them in percent of "
    "their middle: what another run may come to."
)


def apart(results: plots.NamedResults) -> Note | None:
    """Reasons why stages are not pooled or joined by a line; None if all are."""
    drawn = lines(results)
    sentences = []
    if differs := differing(drawn):
        sentences.append(
            f"{len(drawn)} groups of stages are drawn apart, and nothing is pooled over them, as they differ in "
            f"{', '.join(differs)}: {'; '.join(line.name for line in drawn)}"
        )
    sentences += [
        f"{line.name} is pooled with no other result, as its {' and '.join(line.unknown)} are not known"
        for line in drawn
        if line.unknown and len(results) > 1
    ]
    return Note(". ".join(sentences) + ".") if sentences else None


def _pooled(line: Line) -> tuple[object, ...]:
    """Key that the stages of two lines share if they are repeats of each other."""
    own = line.place if line.unknown else None
    return (line.result.kind, *line.conditions.values(), own)


def _p99_ms(latency: str) -> Callable[[Stage], float | None]:
    def figure(stage: Stage) -> float | None:
        quantile = stage.quantile(latency, 0.99)
        return quantile.estimate * 1e3 if quantile is not None else None

    return figure


_REPEATED: dict[str, Callable[[Stage], float | None]] = {
    "TTFT p99 ms": _p99_ms("ttft"),
    "TPOT p99 ms": _p99_ms("tpot"),
    "output tokens/s": lambda stage: stage.output_tokens_per_s,
}


def spread(values: Sequence[float | None]) -> Cell | str:
    """Median, lowest and highest of the known values, and half of their range in percent of its middle."""
    known = [value for value in values if value is not None]
    if not known:
        return UNKNOWN
    if len(known) == 1:
        return Cell(f"{known[0]:,.4g}", "", f"1 of {len(values)}" if len(values) > 1 else "")
    low, high = min(known), max(known)
    share = f", ±{(high - low) / (high + low) * 100:.2g}%" if high + low else ""
    some = f", {len(known)} of {len(values)}" if len(known) < len(values) else ""
    return Cell(f"{median(known):,.4g}", "", f"{low:,.4g} to {high:,.4g}{share}{some}")


def number(value: float | None) -> Cell | str:
    """Value with four significant digits, or whole from 1,000 on."""
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
