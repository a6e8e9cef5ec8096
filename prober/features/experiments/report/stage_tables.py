"""Tables of a result's stages: latency, throughput, engine and GPUs, outcomes, cost, repeats."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from typing import Any

from prober.features.experiments.report import plots
from prober.features.experiments.report.document import UNKNOWN, Cell, Note, Table
from prober.measure.timeline import format_duration
from prober.results.capacity import Capacity
from prober.results.conditions import Line, differing, lines
from prober.results.cost import Cost, stage_cost, tokens_per_s_per_user
from prober.results.facets import Facet
from prober.results.result import LATENCIES, Result, Stage
from prober.results.stage import USES, moments, samples, total
from prober.statistics.quantiles import REPORTED_QUANTILES, Quantile, percentile_name

Row = list[Cell | str]
Value = Cell | str | float | Quantile | None
Columns = Mapping[str, Callable[..., Value]]  # by name, with a leading `#` for numbers


def cell(value: Value) -> Cell | str:
    """A value as a cell: None is unknown; numbers have four significant digits, and from 1,000 no decimals."""
    if isinstance(value, Quantile):
        return quantile_cell(value)
    if isinstance(value, float | int):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return UNKNOWN if value is None else value


def table_of(columns: Columns, rows: Iterable[Iterable[Any]]) -> Table | None:
    """Build a table; None without rows.

    columns: {column name: function that returns a cell's value from the items of a row}; rows: items of each row
    """
    cells = [[cell(column(*row)) for column in columns.values()] for row in map(tuple, rows)]
    return Table(list(columns), cells) if cells else None


@dataclass(frozen=True, slots=True)
class TableOf:
    """A kind of table that a report shows per result. rows: returns the items of each row; note: how to read the table"""

    rows: Callable[[Result], Iterable[Iterable[Any]]]
    columns: Columns
    note: str = ""

    def table(self, result: Result) -> Table | None:
        """The table for a result; None if it has no rows."""
        return table_of(self.columns, self.rows(result))


def part(facet: Facet, result: Result) -> Table | None:
    """Table of a facet of a result's stages; None if it has no columns, or no stage has it."""
    named = {name: lambda stage, value, column=column: column(value) for name, column in facet.columns.items()}
    rows = ((stage, value) for stage in result.stages for value in facet.of(stage))
    return table_of({"stage": lambda stage, value: stage.name, **named}, rows) if facet.columns else None


def latencies(result: Result) -> Table | None:
    """Table of quantiles, mean and standard deviation of each latency in each stage."""
    rows: list[Row] = []
    for stage in result.stages:
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
                        latency.upper(),
                        f"{count:,}" if count else UNKNOWN,
                        *(quantile_cell(quantiles.get(q), is_bound=q in bounds) for q in REPORTED_QUANTILES),
                        cell(stage.tail_ratio(latency)),
                        *map(_duration, moments(stage, latency)),
                    ]
                )
                anchor = ""
            if stage.requests and reported:
                stated = [_duration(reported.get(percentile_name(q))) for q in REPORTED_QUANTILES]
                own = [*stated, "–", _duration(reported.get("mean")), _duration(reported.get("std"))]
                rows.append([stage.name, f"{latency.upper()}, {AS_THE_FILE_SAYS}", "–", *own])
    head = ["stage", "latency", "#samples", *(f"#{percentile_name(q)}" for q in REPORTED_QUANTILES), "#p99/p50"]
    head += ["#mean", "#std. deviation"]
    return Table(head, rows) if rows else None


def contradictions(result: Result) -> Iterator[str]:
    """A sentence per latency statistic in a file that the file's own requests contradict.

    Tools interpolate quantiles differently, so a difference of one rank plus MAX_APART is allowed.
    """
    for stage in result.stages:
        of_stage = samples(stage.requests)
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
                        f"{stage.name}: the file contradicts itself, so do not rely on it: {latency.upper()} {name} is "
                        f"{format_duration(ours_s)} by its requests, and {format_duration(stated_s)} by its own figure"
                    )
                    break


AS_THE_FILE_SAYS = "as the file says"
MAX_APART = 0.05  # between a file's figure and its requests'
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


def quantile_cell(quantile: Quantile | None, *, is_bound: bool = False) -> Cell:
    """The estimate with its confidence interval, and a star if it has too few samples. is_bound: the estimate is a lower bound"""
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


THROUGHPUT = TableOf(
    lambda result: zip(result.stages),
    {
        "stage": lambda stage: stage.name,
        "#added /s": lambda stage: stage.rate_per_s,
        "#there already /s": lambda stage: stage.demand_per_s,
        "#s": lambda stage: stage.duration_s,
        "#sent": lambda stage: None if stage.unanswered is None else stage.sent,
        "#answered /s": lambda stage: stage.at_rate.requests_per_s,
        "#goodput /s": lambda stage: stage.at_rate.good_per_s,
        "#prompt tokens/s": lambda stage: stage.at_rate.prompt_tokens_per_s,
        "#output tokens/s": lambda stage: stage.at_rate.output_tokens_per_s,
        "#tokens/s": lambda stage: total((stage.at_rate.prompt_tokens_per_s, stage.at_rate.output_tokens_per_s)),
        "#prompt tokens/s a GPU": lambda stage: stage.prompt_tokens_per_s_per_gpu,
        "#output tokens/s a GPU": lambda stage: stage.output_tokens_per_s_per_gpu,
        "#prompt tokens/s delivered": lambda stage: stage.delivered and stage.delivered.prompt_tokens_per_s,
        "#output tokens/s delivered": lambda stage: stage.delivered and stage.delivered.output_tokens_per_s,
        "#prompt tokens asked": lambda stage: (
            stage.prompt_lengths and stage.prompt_lengths.asked / stage.prompt_lengths.requests
        ),
        "#prompt tokens a request": lambda stage: stage.prompt_tokens_per_request,
        "#output tokens a request": lambda stage: stage.output_tokens_per_request,
        "#wrong of checked answers": lambda stage: (
            f"{stage.quality[1]} of {stage.quality[0]}" if stage.quality else None
        ),
        "ended by": lambda stage: stage.ended or None,
    },
    "Answers, goodput and tokens per second are those of the target at the stage's rate: the rate, times the share of the stage's "
    "requests that were answered (goodput: and good by every SLO), times the mean tokens of a request. They are unknown where the "
    "stage is too short to show that the target keeps up with the rate; where it falls behind, they are those delivered once it "
    "was full. Delivered: received while the stage was sending, by the times of the chunks, for requests of earlier stages too; "
    "prompt tokens at the first token. Of another tool: of its requests over its duration. Output tokens are the server's count.",
)


def _use(name: str, stage: Stage) -> Value:
    """A stage's value of one usage figure, from the engine's metrics page or the GPUs."""
    value = stage.use.get(name)
    if value is not None and name.endswith("_ratio"):
        return f"{value * 100:.3g}%"
    return _duration(value) if name.endswith("_s") else value


def is_read(stage: Stage) -> bool:
    """True if the engine's page or GPUs were read during the stage."""
    return any(value is not None for value in stage.use.values())


USE = TableOf(
    lambda result: zip(result.stages if any(map(is_read, result.stages)) else ()),
    {"stage": lambda stage: stage.name, **{f"#{label}": partial(_use, name) for name, (label, _) in USES.items()}},
    "Unknown where it is not shown: neither the engine's page nor its GPUs were read.",
)
SHAPES = TableOf(
    lambda result: (
        (stage, stage.load or result.load)
        for stage in result.stages
        if any((other.load or result.load) != result.load for other in result.stages)
    ),
    {
        "stage": lambda stage, load: stage.name,
        "prompt tokens": lambda stage, load: load.prompt_tokens,
        "output tokens": lambda stage, load: load.output_tokens,
        "arrivals": lambda stage, load: load.arrivals,
    },
)


def _outcome_text(stage: Stage) -> str:
    by_outcome = ", ".join(f"{count:,} {outcome}" for outcome, count in stage.outcomes.items())
    return "; ".join(filter(None, (by_outcome or f"{stage.answered:,} ok", str(stage.refused))))


OUTCOMES = TableOf(
    lambda result: zip(result.stages if any(stage.outcomes or stage.sent for stage in result.stages) else ()),
    {
        "stage": lambda stage: stage.name,
        "requests by outcome": _outcome_text,
        "#not answered": lambda stage: (
            f"{stage.unanswered / stage.sent * 100:.3g}%" if stage.sent and stage.unanswered is not None else None
        ),
    },
)
COSTS = TableOf(
    lambda result: (
        (stage, stage_cost(stage, result.prices) or Cost(None, None, None))
        for stage in result.stages
        if result.prices.gpu_per_hour is not None
    ),
    {
        "stage": lambda stage, cost: stage.name,
        "#$ a million prompt tokens": lambda stage, cost: cost.prompt,
        "#$ a million output tokens": lambda stage, cost: cost.output,
        "#$ a million tokens": lambda stage, cost: cost.total,
        "#output tokens/s a GPU": lambda stage, cost: stage.output_tokens_per_s_per_gpu,
        "#tokens/s a user": lambda stage, cost: tokens_per_s_per_user(stage),
    },
    "Dollars per million tokens = GPUs × dollars per GPU and hour ÷ 3600 ÷ tokens per second at the stage's rate × 1,000,000; unknown "
    "with them. Each column bears the whole price of the GPUs: they are three ways to say it, not parts of one sum. Only the prober's "
    "own tokens count, so that the price is lower where the GPUs serve others too. Tokens/s a user are 1 ÷ the median TPOT.",
)


def repeats(results: plots.NamedResults) -> Table | None:
    """Table of stages measured more than once under the same conditions, in one or several results."""
    groups: dict[tuple[object, ...], list[tuple[int, Stage]]] = {}
    for line in lines(results):
        for stage in line.stages:
            groups.setdefault((*_pooled(line), stage.name, stage.rate_per_s), []).append((line.place, stage))
    repeated = [group for group in groups.values() if len(group) > 1]
    return table_of(_REPEATS, (zip(*group, strict=True) for group in repeated))


def _p99_ms(latency: str, places: Sequence[int], stages: Sequence[Stage]) -> Cell | str:
    """Cell with a latency's p99 in milliseconds, over repeated stages."""
    p99s = (stage.quantile(latency, 0.99) for stage in stages)
    return spread([None if p99 is None else p99.estimate * 1e3 for p99 in p99s])


_REPEATS: Columns = {
    "stage": lambda places, stages: stages[0].name,
    "#rate /s": lambda places, stages: stages[0].rate_per_s,
    "#times": lambda places, stages: str(len(stages)),
    "#results": lambda places, stages: str(len(set(places))),
    "#TTFT p99 ms": partial(_p99_ms, "ttft"),
    "#TPOT p99 ms": partial(_p99_ms, "tpot"),
    "#output tokens/s": lambda places, stages: spread([stage.at_rate.output_tokens_per_s for stage in stages]),
}


def capacities(results: plots.NamedResults) -> Table | None:
    """Table of capacities by SLO from several sweeps of one configuration; None for fewer than two."""
    runs: dict[tuple[object, ...], list[Result]] = {}
    for place, (_, result) in enumerate(results):
        if result.capacities and not result.capacities[0].users:
            key = tuple(_pooled(line) for line in lines(results) if line.place == place)
            runs.setdefault(key, []).append(result)
    rows: list[tuple[int, list[Capacity]]] = []
    for repeated in (sweeps for sweeps in runs.values() if len(sweeps) > 1):
        by_slo: dict[str, list[Capacity]] = {}
        for capacity in (capacity for result in repeated for capacity in result.capacities):
            by_slo.setdefault(capacity.slo, []).append(capacity)
        rows += [(len(repeated), of_slo) for of_slo in by_slo.values()]
    return table_of(_CAPACITIES, ((runs, of_slo, [c for c in of_slo if c.verdict == "found"]) for runs, of_slo in rows))


_CAPACITIES: Columns = {
    "SLO": lambda runs, of_slo, known: of_slo[0].slo,
    "#runs": lambda runs, of_slo, known: str(runs),
    "#estimated": lambda runs, of_slo, known: str(len(known)),
    "#estimated knee /s": lambda runs, of_slo, known: spread([capacity.estimate for capacity in known]),
    "#alone /s": lambda runs, of_slo, known: spread([capacity.alone_per_s for capacity in known]),
    "other verdicts": lambda runs, of_slo, known: (
        ", ".join(dict.fromkeys(c.verdict.replace("_", " ") for c in of_slo if c not in known)) or "–"
    ),
}
REPEATS_NOTE = (
    "Each figure is the median over the repeats, with the least and the most, and half of the way between them in percent of "
    "their middle: what another run may come to."
)


def apart(results: plots.NamedResults) -> Note | None:
    """Note on why some stages are not pooled, or not joined to one curve; None if all are."""
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
    """Key of a line; stages of lines with equal keys can be repeats of each other."""
    own = line.place if line.unknown else None
    return (line.result.kind, *line.conditions.values(), own)


def spread(values: Sequence[float | None]) -> Cell | str:
    """Cell with the median of the known values, lowest and highest, and half of that range as a percentage of its middle."""
    known = [value for value in values if value is not None]
    if not known:
        return UNKNOWN
    if len(known) == 1:
        return Cell(f"{known[0]:,.4g}", "", f"1 of {len(values)}" if len(values) > 1 else "")
    low, high = min(known), max(known)
    share = f", ±{(high - low) / (high + low) * 100:.2g}%" if high + low else ""
    some = f", {len(known)} of {len(values)}" if len(known) < len(values) else ""
    return Cell(f"{median(known):,.4g}", "", f"{low:,.4g} to {high:,.4g}{share}{some}")
