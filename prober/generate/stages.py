"""Tables of a result's stages: latency, throughput, what engine and GPUs said, outcomes, cost, repeats."""

from collections.abc import Callable, Sequence

from prober.analysis.quantiles import Quantile
from prober.generate import plots
from prober.generate.document import UNKNOWN, Cell, Table
from prober.generate.drawing import ms
from prober.results.result import LATENCIES, Result, Stage, Use
from prober.results.sizing import HOUR_S, MILLION

Row = list[Cell | str]


def latencies(result: Result) -> Table | None:
    rows: list[Row] = []
    for stage in result.stages:
        for latency in LATENCIES:
            found = {each.q: each for each in stage.latencies.get(latency, ())}
            if found:
                ratio = stage.tail_ratio(latency)
                count = max(each.count for each in found.values())
                rows.append(
                    [
                        stage.name,
                        plots.NAMES[latency],
                        f"{count:,}" if count else UNKNOWN,
                        *(_quantile(found.get(q)) for q in _QS),
                        number(ratio),
                    ]
                )
    head = ["stage", "latency", "#samples", *(f"#{'max' if q == 1 else f'p{q * 100:g}'}" for q in _QS), "#p99/p50"]
    return Table(head, rows) if rows else None


_QS = (0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0)
LATENCY_NOTE = (
    "In brackets the distribution-free 95% interval, ? where the samples give no bound. * marks too few samples: under 1,000 "
    "for p99, 200 for p95, 100 for p90, 100,000 for p99.9; nothing should rest on those. The gaps of one answer are not "
    "independent, so the intervals of ITL are narrower than they should be."
)


def _quantile(found: Quantile | None) -> Cell:
    if found is None:
        return UNKNOWN
    if found.q == 1.0:
        return Cell(ms(found.estimate))
    low, high = ("?" if bound is None else ms(bound) for bound in (found.lower, found.upper))
    aside = "" if found.lower is None and found.upper is None else f"[{low}, {high}]"
    return Cell(ms(found.estimate), "", aside) if found.enough else Cell(f"{ms(found.estimate)} *", "few", aside)


def throughput(result: Result) -> Table | None:
    rows: list[Row] = [
        [
            stage.name,
            number(stage.rate_per_s),
            number(stage.demand_per_s),
            number(stage.duration_s),
            f"{stage.sent:,}",
            number(stage.requests_per_s),
            number(stage.goodput_per_s),
            number(stage.prompt_tokens_per_s),
            number(stage.output_tokens_per_s),
            number(stage.prompt_tokens_per_s_per_gpu),
            number(stage.output_tokens_per_s_per_gpu),
            number(stage.prompt_tokens_per_request),
            number(stage.output_tokens_per_request),
            stage.ended or UNKNOWN,
        ]
        for stage in result.stages
    ]
    head = [
        *("stage", "#added /s", "#there already /s", "#s", "#sent", "#answered /s", "#goodput /s", "#prompt tokens/s"),
        *("#output tokens/s", "#prompt tokens/s a GPU", "#output tokens/s a GPU", "#prompt tokens a request"),
        *("#output tokens a request", "ended by"),
    ]
    return Table(head, rows) if rows else None


THROUGHPUT_NOTE = (
    "Of requests answered properly, over the time up to the last answer. Goodput: those that missed no SLO. Output tokens are "
    "the server's count."
)


def use(result: Result) -> Table | None:
    if all(stage.use == Use() for stage in result.stages):
        return None
    rows: list[Row] = [
        [stage.name, *(_shown(name, getattr(stage.use, name)) for name in _USE)] for stage in result.stages
    ]
    return Table(["stage", *(f"#{label}" for label in _USE.values())], rows)


USE_NOTE = "Unknown where it is not shown: neither the engine's page nor its GPUs were read."


_USE = {
    "running_mean": "running",
    "waiting_mean": "waiting",
    "waiting_peak": "waiting, peak",
    "kv_usage_peak_ratio": "KV cache, peak",
    "preemptions": "preemptions",
    "gpu_utilization_mean_ratio": "GPU",
    "gpu_utilization_peak_ratio": "GPU, peak",
    "gpu_memory_peak_ratio": "GPU memory, peak",
    "memory_bandwidth_peak_ratio": "memory bandwidth, peak",
    "power_mean_watts": "power, W",
    "power_peak_watts": "power, peak, W",
}


def _shown(name: str, value: float | None) -> Cell | str:
    return f"{value * 100:.3g}%" if value is not None and name.endswith("_ratio") else number(value)


def outcomes(result: Result) -> Table | None:
    kinds = list(dict.fromkeys(kind for stage in result.stages for kind in stage.outcomes))
    rows: list[Row] = [
        [
            stage.name,
            Cell(", ".join(f"{count:,} {kind}" for kind, count in stage.outcomes.items()) or "none"),
            f"{(stage.sent - stage.answered) / stage.sent * 100:.3g}%" if stage.sent else UNKNOWN,
        ]
        for stage in result.stages
    ]
    return Table(["stage", "requests by outcome", "#not answered"], rows) if kinds else None


def costs(result: Result) -> Table | None:
    price = result.prices.gpu_per_hour
    if price is None:
        return None
    rows: list[Row] = []
    for stage in result.stages:
        dollars_per_s = price * stage.gpus / HOUR_S if stage.gpus else None
        prompt, output = stage.prompt_tokens_per_s, stage.output_tokens_per_s
        both = prompt + output if prompt is not None and output is not None else None
        rows.append([stage.name, *(number(_per_million(dollars_per_s, each)) for each in (prompt, output, both))])
    return Table(["stage", "#$ a million prompt tokens", "#$ a million output tokens", "#$ a million tokens"], rows)


COST_NOTE = "Each column bears the whole price of the GPUs: they are three ways to say it, not parts of one sum."


def _per_million(dollars_per_s: float | None, tokens_per_s: float | None) -> float | None:
    return dollars_per_s / tokens_per_s * MILLION if dollars_per_s is not None and tokens_per_s else None


def repeats(result: Result) -> Table | None:
    groups: dict[float, list[Stage]] = {}
    for stage in result.stages:
        if stage.rate_per_s is not None:
            groups.setdefault(stage.rate_per_s, []).append(stage)
    rows: list[Row] = [
        [f"{rate:g}/s", str(len(stages)), *(_spread(stages, tell) for tell in _REPEATED.values())]
        for rate, stages in groups.items()
        if len(stages) > 1
    ]
    return Table(["rate", "#times", *(f"#{label}, min to max" for label in _REPEATED)], rows) if rows else None


def _p99(latency: str) -> Callable[[Stage], float | None]:
    def tell(stage: Stage) -> float | None:
        found = stage.quantile(latency, 0.99)
        return found.estimate * 1e3 if found is not None else None

    return tell


_REPEATED: dict[str, Callable[[Stage], float | None]] = {
    "TTFT p99 ms": _p99("ttft"),
    "TPOT p99 ms": _p99("tpot"),
    "output tokens/s": lambda stage: stage.output_tokens_per_s,
}


def _spread(stages: Sequence[Stage], tell: Callable[[Stage], float | None]) -> Cell:
    known = [value for stage in stages if (value := tell(stage)) is not None]
    if len(known) < 2:
        return UNKNOWN
    low, high = min(known), max(known)
    return Cell(f"{low:,.4g} to {high:,.4g}", "", f"±{(high - low) / (high + low) * 100:.2g}%" if high + low else "")


def number(value: float | None) -> Cell | str:
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
