"""Charts of a report."""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from prober.features.experiments.report.document import Figure
from prober.features.experiments.report.svg_chart import HEIGHT, WIDTH, Canvas, Scale, around, colour, shade
from prober.measure.timeline import format_duration
from prober.results.capacity import Capacity, binding
from prober.results.conditions import Line, contracted, lines
from prober.results.result import LATENCIES, Result, Stage
from prober.results.stage import samples
from prober.statistics.quantiles import MIN_SAMPLES_BY_QUANTILE, Quantile, percentile_name

MAX_LINE_POINTS = 240  # of a distribution
MAX_TIMELINE_POINTS, MAX_TIMELINE_FAILURES = 2_500, 300
MAX_LABELLED_POINTS = 12  # of a frontier
MAX_QUANTILE = 0.9999  # end of a distribution's axis
MAX_EXTRAPOLATION = 1.5  # of the highest rate: a knee far beyond it must not squeeze the measured points
WIDE, WIDE_HEIGHT = 1160, 420  # of the first chart

NamedResults = Sequence[tuple[str, Result]]


def rate_of(stage: Stage) -> float | None:
    """Total requests per second of a stage: rate, or else answered requests per second, plus the background load."""
    own = stage.rate_per_s if stage.rate_per_s is not None else stage.at_rate.requests_per_s
    return None if own is None else own + (stage.demand_per_s or 0.0)


def stage_id(result: Result, stage: Stage) -> str:
    """Id of the page element with a stage's latencies."""
    return f"{result.id}-{next(i for i, other in enumerate(result.stages) if other is stage)}"


def decisive_latency(results: NamedResults) -> str:
    """The latency to draw large: of the SLO that fails first, else of the first SLO, else TTFT."""
    for _, result in results:
        signals = {slo.name: slo.signal for slo in result.slos}
        first = binding(result.capacities)
        names = [*([first.slo] if first is not None else []), *signals]
        for signal in (signals.get(name) for name in names):
            if signal in LATENCIES:
                return signal
    return "ttft"


def main_curve(results: NamedResults) -> Figure | None:
    """QPS–latency chart of the decisive latency, as wide as the page."""
    return _curve(results, decisive_latency(results), first=False, width=WIDE, height=WIDE_HEIGHT)


def curves(results: NamedResults, latencies: Sequence[str] = LATENCIES, *, first: bool = False) -> list[Figure]:
    """QPS–latency charts: p50 and p99 of each latency over the rate, with thresholds and knees.

    first: draw only the first result in full, and the others' p99 as thin lines
    """
    return [figure for latency in latencies if (figure := _curve(results, latency, first=first)) is not None]


def frontiers(results: NamedResults) -> list[Figure]:
    """Throughput–latency charts: p99 of TTFT and of TPOT over output tokens per second."""
    return [figure for latency in ("ttft", "tpot") if (figure := _frontier(results, latency)) is not None]


def distributions(results: NamedResults) -> list[Figure]:
    """Charts of the distributions of TTFT and ITL per stage, with one scale for all results."""
    figures = []
    for latency in ("ttft", "itl"):
        rows = [(name, result, _stage_quantiles(result, latency)) for name, result in results]
        scale = around([x for _, _, stages in rows for points in stages for x, _ in points], "log")
        figures += [
            _distribution(name if len(results) > 1 else "", result, latency, stages, scale)
            for name, result, stages in rows
            if any(stages)
        ]
    return figures


def timelines(results: NamedResults) -> list[Figure]:
    """Charts of the stages, and of the TTFT of their requests, over time."""
    return [
        figure
        for name, result in results
        if (figure := _timeline(name if len(results) > 1 else "", result)) is not None
    ]


class _CurvePoint(NamedTuple):
    """A stage in a chart over the rate. line: index of its line; tail_bound: lower bound, if the tail quantile is unknown"""

    line: int
    stage: Stage
    rate_per_s: float
    p50: Quantile
    tail: Quantile | None
    tail_bound: Quantile | None
    link: str


def _curve(
    results: NamedResults, latency: str, *, first: bool, width: int = WIDTH, height: int = HEIGHT
) -> Figure | None:
    drawn = lines(results)
    thin = {number for number, line in enumerate(drawn) if first and line.place > 0}
    tail_q = _tail_q(drawn, latency)
    points = _curve_points(drawn, latency, tail_q)
    if not points:
        return None
    fits = [
        (number, fit)
        for number, line in enumerate(drawn)
        if number not in thin
        for fit in _fits(line.result, latency, tail_q)
    ]
    tail = percentile_name(tail_q)
    thresholds = _thresholds(drawn, latency)
    # A knee belongs to a result, and has the colour of the result's first line.
    first_lines = {line.place: number for number, line in reversed(list(enumerate(drawn)))}
    knees = [
        (number, knee)
        for number in first_lines.values()
        if number not in thin
        for knee in _knees(drawn[number].result, latency)
    ]
    seconds = [threshold_s for threshold_s, _ in thresholds]
    for point in points:
        seconds += [*_extent(point.tail), *_extent(point.tail_bound)]
        seconds += [] if point.line in thin else _extent(point.p50)
    for _, fit in fits:
        seconds += [latency_s for _, latency_s in fit]
    rates = [point.rate_per_s for point in points]
    limit_per_s = MAX_EXTRAPOLATION * max(rates)
    rates += [min(rate, limit_per_s) for _, knee in knees for rate in (knee.upper, knee.estimate) if rate]
    canvas = Canvas(around(rates), around(seconds, "log"), width, height)
    drawn_knees = [(number, knee) for number, knee in knees if (knee.lower or 0.0) < canvas.x.high]
    for number, knee in drawn_knees:
        estimate = knee.estimate if (knee.estimate or math.inf) <= canvas.x.high else None
        label = f"knee {_interval(knee)}" if len(drawn_knees) == 1 else ""
        title = f"estimated knee of {knee.slo}: {_interval(knee)}"
        canvas.band(knee.lower or 0.0, knee.upper or canvas.x.high, estimate, colour(number), title, label)
    for threshold_s, label in thresholds:
        canvas.rule(threshold_s, label)
    for number, fit in fits:
        canvas.line([(x, y) for x, y in fit if x <= canvas.x.high], colour(number), "dotted")
    for number, group in groupby(
        sorted(points, key=lambda point: point.line not in thin), key=lambda point: point.line
    ):
        _draw_line(canvas, list(group), latency, colour(number), is_thin=number in thin)
    if len(drawn) > len(results):
        for point in points:
            name = drawn[point.line].name if len(results) == 1 else point.stage.name
            canvas.label(point.rate_per_s, (point.tail or point.tail_bound or point.p50).estimate, name)
    note = f"{tail} solid, p50 dashed; bars are 95% intervals, hollow points have too few samples."
    if any(point.tail is None and point.tail_bound is not None for point in points):
        note += (
            f" A bar up to the edge: the {tail} is only known to be at least that of the point, as requests were cut."
        )
    note += f" Dotted: the {tail} of the engine model that was fitted to the sweep." if fits else ""
    note += " The band is the interval of the knee." if drawn_knees else ""
    note += "".join(
        f" The knee of {knee.slo}, {_interval(knee)}, is beyond the axis and beyond all rates that were sent."
        for number, knee in knees
        if (number, knee) not in drawn_knees
    )
    note += f" Thin: the {tail} of those before." if thin else ""
    used = {point.line for point in points}
    return Figure(
        f"{latency.upper()} over load",
        canvas.svg("requests per second, load that was there already included", f"{latency.upper()}, p50 and {tail}"),
        note,
        [key for number, key in enumerate(_keys(drawn)) if number in used],
        is_wide=width > WIDTH,
    )


def _tail_q(drawn: Sequence[Line], latency: str) -> float:
    """The tail quantile to draw: that of the latency's strictest SLO, if stages have it; else 0.99."""
    objectives = {
        float(slo.objective)
        for line in drawn
        for stage in line.stages
        for slo in contracted(line.result, stage)
        if slo.signal == latency
    }
    return max(objectives.intersection(MIN_SAMPLES_BY_QUANTILE) - {0.5}, default=0.99)


def _curve_points(drawn: Sequence[Line], latency: str, tail_q: float) -> list[_CurvePoint]:
    """Points of the stages with a rate and a median, sorted by line and rate."""
    return [
        _CurvePoint(
            number,
            stage,
            rate_per_s,
            p50,
            stage.quantile(latency, tail_q),
            next((bound for bound in stage.at_least.get(latency, ()) if bound.q == tail_q), None),
            stage_id(line.result, stage),
        )
        for number, line in enumerate(drawn)
        for stage in sorted(line.stages, key=lambda stage: rate_of(stage) or 0.0)
        if (rate_per_s := rate_of(stage)) is not None and (p50 := stage.quantile(latency, 0.5))
    ]


def _draw_line(canvas: Canvas, points: Sequence[_CurvePoint], latency: str, colour: str, *, is_thin: bool) -> None:
    tail = [(point.rate_per_s, point.tail.estimate) for point in points if point.tail is not None]
    if is_thin:
        canvas.line(tail, colour, "thin")
        return
    canvas.line([(point.rate_per_s, point.p50.estimate) for point in points], colour, "dashed")
    canvas.line(tail, colour)
    for point in points:
        link = point.link if canvas.width > WIDTH else ""  # small charts are on pages without a point's figures
        for quantile in filter(None, (point.p50, point.tail)):
            if quantile.lower is not None and quantile.upper is not None:
                canvas.whisker(point.rate_per_s, quantile.lower, quantile.upper, colour)
            title = (
                f"{point.stage.name}: {latency.upper()} {percentile_name(quantile.q)} {format_duration(quantile.estimate)} "
                f"of {quantile.count:,} samples"
            )
            is_uncertain = not quantile.has_enough_samples
            canvas.dot(point.rate_per_s, quantile.estimate, colour, title, hollow=is_uncertain, link=link)
        if point.tail is None and (bound := point.tail_bound) is not None:
            canvas.whisker(point.rate_per_s, bound.estimate, canvas.y.high, colour)
            name = f"{latency.upper()} {percentile_name(bound.q)}"
            title = f"{point.stage.name}: {name} {format_duration(bound.estimate)} or more"
            canvas.dot(point.rate_per_s, bound.estimate, colour, title, hollow=True, link=link)


def _extent(quantile: Quantile | None) -> tuple[float, ...]:
    if quantile is None:
        return ()
    if quantile.lower is None or quantile.upper is None:
        return (quantile.estimate,)
    return quantile.estimate, quantile.lower, quantile.upper


def _thresholds(drawn: Sequence[Line], latency: str) -> list[tuple[float, str]]:
    """(seconds, label) of the SLO thresholds. The label names the lines with the SLO, unless all have it."""
    lines_of: dict[tuple[float, str], set[int]] = {}
    for number, line in enumerate(drawn):
        for slo in {slo.name: slo for stage in line.stages for slo in contracted(line.result, stage)}.values():
            if slo.signal == latency and slo.threshold_s is not None:
                label = f"{slo.name}: {float(slo.objective) * 100:.6g}% within {format_duration(slo.threshold_s)}"
                lines_of.setdefault((slo.threshold_s, label), set()).add(number)
    thresholds = []
    for (threshold_s, label), numbers in sorted(lines_of.items()):
        names = ", ".join(drawn[number].name for number in sorted(numbers))
        thresholds.append((threshold_s, label if len(numbers) == len(drawn) else f"{label} ({names})"))
    return thresholds


def _knees(result: Result, latency: str) -> list[Capacity]:
    names = {slo.name for slo in result.slos if slo.signal == latency}
    return [
        capacity
        for capacity in result.capacities
        if capacity.slo in names and capacity.verdict == "found" and not capacity.users
    ]


def _fits(result: Result, latency: str, tail_q: float) -> list[tuple[tuple[float, float], ...]]:
    """Curves that a sweep's model fitted to the tail quantile `tail_q`."""
    names = {slo.name for slo in result.slos if slo.signal == latency and float(slo.objective) == tail_q}
    return [capacity.curve for capacity in result.capacities if capacity.slo in names and capacity.curve]


def _interval(knee: Capacity) -> str:
    """Text such as `12/s (10 to 13, 90% interval)`."""
    estimate, *bounds = ("?" if value is None else f"{value:.3g}" for value in (knee.estimate, knee.lower, knee.upper))
    return f"{estimate}/s ({' to '.join(bounds)}, {knee.confidence:.0%} interval)"


def _frontier(results: NamedResults, latency: str) -> Figure | None:
    drawn = lines(results)
    per_gpu = all(stage.gpus for line in drawn for stage in line.stages)

    def throughput(stage: Stage) -> float | None:
        return stage.output_tokens_per_s_per_gpu if per_gpu else stage.at_rate.output_tokens_per_s

    points = [
        (number, stage, tokens_per_s, p99)
        for number, line in enumerate(drawn)
        for stage in sorted(line.stages, key=lambda stage: rate_of(stage) or 0.0)
        if (tokens_per_s := throughput(stage)) is not None and (p99 := stage.quantile(latency, 0.99))
    ]
    if not points:
        return None
    y = around([p99.estimate for *_, p99 in points], "log")
    canvas = Canvas(around([tokens_per_s for _, _, tokens_per_s, _ in points]), y)
    for number, group in groupby(points, key=lambda point: point[0]):
        canvas.line([(tokens_per_s, p99.estimate) for _, _, tokens_per_s, p99 in group], colour(number), "thin")
    for number, stage, tokens_per_s, p99 in points:
        is_dominated = any(
            other_tokens_per_s >= tokens_per_s and other_p99.estimate < p99.estimate
            for other_number, _, other_tokens_per_s, other_p99 in points
            if other_number == number
        )
        title = f"{stage.name}: {tokens_per_s:,.4g} tokens/s, {latency.upper()} p99 {format_duration(p99.estimate)}"
        canvas.dot(tokens_per_s, p99.estimate, colour(number), title, hollow=is_dominated)
        if len(points) <= MAX_LABELLED_POINTS:
            canvas.label(tokens_per_s, p99.estimate, stage.name)
    unit = "output tokens per second and GPU" if per_gpu else "output tokens per second"
    return Figure(
        f"Throughput against {latency.upper()}",
        canvas.svg(unit, f"{latency.upper()}, p99"),
        "Full points are the frontier: no other stage of the same line is both faster and carries as much.",
        _keys(drawn),
    )


def _stage_quantiles(result: Result, latency: str) -> list[list[tuple[float, float]]]:
    """(seconds, quantile) points of each stage's distribution, from samples or else the known quantiles."""
    stages = []
    for stage in result.stages:
        values = sorted(samples(stage.requests)[latency])
        if values:  # evenly on the tail's scale, up to the last quantile that the samples can show
            count, steps = len(values), min(len(values), MAX_LINE_POINTS)
            qs = (1 - count ** (-step / steps) for step in range(steps + 1))
            stages.append([(values[round(q * (count - 1))], q) for q in qs])
        else:
            stages.append(
                [(quantile.estimate, quantile.q) for quantile in stage.latencies.get(latency, ()) if quantile.q < 1]
            )
    return stages


def _distribution(
    name: str, result: Result, latency: str, stages: Sequence[Sequence[tuple[float, float]]], x: Scale
) -> Figure:
    highest = max((q for points in stages for _, q in points), default=0.99)
    canvas = Canvas(x, Scale(0.0, min(MAX_QUANTILE, max(0.99, highest)), "tail"))
    keys = []
    for number, (stage, points) in enumerate(zip(result.stages, stages, strict=True)):
        canvas.line([(seconds, min(q, MAX_QUANTILE)) for seconds, q in points], shade(number, len(stages)))
        if points:
            keys.append((shade(number, len(stages)), stage.name))
    return Figure(
        _title(f"Distribution of {latency.upper()}", name),
        canvas.svg(latency.upper(), "share of samples up to it"),
        "Each further nine is as wide as the first, so that tails show.",
        keys,
    )


def _title(title: str, name: str) -> str:
    """Title of a figure, with the result's name if there are several results."""
    return f"{title}, {name}" if name else title


def _timeline(name: str, result: Result) -> Figure | None:
    sent = [
        (number, row.start_s, row)
        for number, stage in enumerate(result.stages)
        for row in stage.requests
        if row.start_s is not None
    ]
    if not sent or any(stage.begin_s is None for stage in result.stages):
        return None
    sample = sent[:: math.ceil(len(sent) / MAX_TIMELINE_POINTS)]
    ttfts_s = [row.ttft_s for _, _, row in sample if row.ttft_s is not None]
    ends_s = [(stage.begin_s or 0.0) + (stage.sending_s or stage.duration_s or 0.0) for stage in result.stages]
    canvas = Canvas(around([*ends_s, *(start_s for _, start_s, _ in sent)]), around(ttfts_s, "log"))
    shades = [shade(number, len(result.stages)) for number in range(len(result.stages))]
    for number, (stage, end_s) in enumerate(zip(result.stages, ends_s, strict=True)):
        canvas.stripe(stage.begin_s or 0.0, end_s, stage.name, filled=number % 2 == 0)
    for number, stage_shade in enumerate(shades):
        of_stage = [(start_s, row.ttft_s) for place, start_s, row in sample if place == number and row.ttft_s]
        canvas.specks(of_stage, stage_shade)
    failed_s = [start_s for _, start_s, row in sent if not row.is_answered]
    canvas.crosses(failed_s[:: max(1, math.ceil(len(failed_s) / MAX_TIMELINE_FAILURES))])
    return Figure(
        _title("Stages over time", name),
        canvas.svg("seconds since the start", "TTFT of each request"),
        f"Crosses at the upper edge: {len(failed_s):,} requests that were not answered properly." if failed_s else "",
        list(zip(shades, (stage.name for stage in result.stages), strict=True)),
    )


def _keys(drawn: Sequence[Line]) -> list[tuple[str, str]]:
    return [(colour(number), line.name) for number, line in enumerate(drawn)] if len(drawn) > 1 else []
