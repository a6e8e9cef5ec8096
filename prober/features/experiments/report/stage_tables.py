"""Tables of a result's stages: latency, throughput, what engine and GPUs said, outcomes, cost, repeats."""

from collections.abc import Callable, Sequence
from statistics import median

from prober.features.experiments.instance_sizing import HOUR_S, MILLION
from prober.features.experiments.report import plots
from prober.features.experiments.report.document import UNKNOWN, Cell, Table
from prober.measure.timeline_text import format_duration
from prober.results.conditions import Line, differing, lines
from prober.results.result import LATENCIES, Result, Stage, Use
from prober.statistics.quantiles import Quantile

Row = list[Cell | str]
Named = Sequence[tuple[str, Result]]


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
    "for p99, 200 for p95, 100 for p90, 100,000 for p99.9; nothing should rest on those. The gaps of one answer are alike, so "
    "the intervals of ITL are by answer and not by gap; its samples are gaps."
)


def _quantile(found: Quantile | None) -> Cell:
    if found is None:
        return UNKNOWN
    if found.q == 1.0:
        return Cell(format_duration(found.estimate))
    low, high = ("?" if bound is None else format_duration(bound) for bound in (found.lower, found.upper))
    aside = "" if found.lower is None and found.upper is None else f"[{low}, {high}]"
    return (
        Cell(format_duration(found.estimate), "", aside)
        if found.has_enough_samples
        else Cell(f"{format_duration(found.estimate)} *", "few", aside)
    )


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
    "Of a sweep's stage: what was delivered while it was sending, by the stamps, of the requests of earlier stages too; prompt "
    "tokens at the first token. Else of requests answered properly, over the time up to the last answer. Goodput: answers that "
    "missed no SLO. Output tokens are the server's count."
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


def shapes(result: Result) -> Table | None:
    """What each stage was sent, where they differ in it."""
    loads = [(stage, stage.load or result.load) for stage in result.stages]
    if all(load == result.load for _, load in loads):
        return None
    rows: list[Row] = [
        [
            stage.name,
            *(UNKNOWN if told is None else told for told in (load.prompt_tokens, load.output_tokens, load.arrivals)),
        ]
        for stage, load in loads
    ]
    return Table(["stage", "prompt tokens", "output tokens", "arrivals"], rows)


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


def repeats(results: Named) -> Table | None:
    """What was measured more than once under the same conditions, within a result and over several."""
    groups: dict[tuple[object, ...], list[tuple[int, Stage]]] = {}
    for line in lines(results):
        for stage in line.stages:
            groups.setdefault((*_pooled(line), stage.name, stage.rate_per_s), []).append((line.place, stage))
    again = {key: found for key, found in groups.items() if len(found) > 1}
    rows: list[Row] = [
        [
            found[0][1].name,
            number(found[0][1].rate_per_s),
            str(len(found)),
            str(len({place for place, _ in found})),
            *(spread([tell(stage) for _, stage in found]) for tell in _REPEATED.values()),
        ]
        for found in again.values()
    ]
    head = ["stage", "#rate /s", "#times", "#results", *(f"#{label}" for label in _REPEATED)]
    return Table(head, rows) if rows else None


def capacities(results: Named) -> Table | None:
    """What the sweeps of one configuration found, run by run."""
    runs: dict[tuple[object, ...], list[Result]] = {}
    for place, (_, result) in enumerate(results):
        if result.capacities:
            key = tuple(_pooled(line) for line in lines(results) if line.place == place)
            runs.setdefault(key, []).append(result)
    rows: list[Row] = []
    for found in (each for each in runs.values() if len(each) > 1):
        for slo in dict.fromkeys(each.slo for result in found for each in result.capacities):
            of_it = [each for result in found for each in result.capacities if each.slo == slo]
            known = [each for each in of_it if each.verdict == "found"]
            rows.append(
                [
                    slo,
                    str(len(found)),
                    str(len(known)),
                    spread([each.estimate for each in known]),
                    spread([each.tokens_per_s for each in known]),
                    ", ".join(dict.fromkeys(each.verdict.replace("_", " ") for each in of_it if each not in known))
                    or "–",
                ]
            )
    head = ["SLO", "#runs", "#found", "#capacity /s", "#tokens/s there", "the others"]
    return Table(head, rows) if rows else None


REPEATS_NOTE = (
    "Each figure is the median over the repeats, with the least and the most, and half of the way between them in percent of "
    "their middle: what another run may come to."
)


def apart(results: Named) -> str | None:
    """Why not all stages are pooled, or joined by a line; None if they are."""
    found = lines(results)
    differs = differing(found)
    told = []
    if differs:
        told.append(
            f"{len(found)} groups of stages are drawn apart, and nothing is pooled over them, as they differ in "
            f"{', '.join(differs)}: {'; '.join(line.name for line in found)}"
        )
    told += [
        f"{line.name} is pooled with no other result, as its {' and '.join(line.unknown)} are not known"
        for line in found
        if line.unknown and len(results) > 1
    ]
    return ". ".join(told) + "." if told else None


def _pooled(line: Line) -> tuple[object, ...]:
    """What the stages of two lines must have in common to be repeats of each other."""
    own = line.place if line.unknown else None
    return (line.result.kind, *line.conditions.values(), own)


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


def spread(values: Sequence[float | None]) -> Cell | str:
    """Median of those that are known, least to most, and how far that is from their middle."""
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
    if value is None:
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
