"""The charts of a report."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from prober.features.experiments.report.axis import Scale, around
from prober.features.experiments.report.document import Figure
from prober.features.experiments.report.svg_chart import Canvas, colour, shade
from prober.measure.timeline_text import format_duration
from prober.results.capacity import Capacity
from prober.results.conditions import Line, contracted, lines
from prober.results.result import LATENCIES, Request, Result, Stage
from prober.results.stage import samples
from prober.statistics.quantiles import Quantile

MOST_POINTS = 240  # of a distribution's line
MOST_SPECKS = 2_500  # of a timeline
NAMES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "E2E"}

Named = Sequence[tuple[str, Result]]


def rate_of(stage: Stage) -> float | None:
    """Requests per second in all: asked for, else answered, and what was there already."""
    own = stage.rate_per_s if stage.rate_per_s is not None else stage.requests_per_s
    return None if own is None else own + (stage.demand_per_s or 0.0)


def curves(results: Named, latencies: Sequence[str] = LATENCIES, *, first: bool = False) -> list[Figure]:
    """QPS–latency: p50 and p99 of each latency over the rate, with thresholds and knees.

    first: only the first result is drawn with all that, the others are thin lines of their p99, to be compared with
    """
    found = [_curve(results, latency, first=first) for latency in latencies]
    return [each for each in found if each is not None]


def frontiers(results: Named) -> list[Figure]:
    """Throughput–latency: p99 of TTFT and of TPOT over output tokens per second."""
    found = [_frontier(results, latency) for latency in ("ttft", "tpot")]
    return [each for each in found if each is not None]


def distributions(results: Named) -> list[Figure]:
    """TTFT and ITL of each stage, all results on the same axes."""
    figures = []
    for latency in ("ttft", "itl"):
        drawn = [(name, result, _lines(result, latency)) for name, result in results]
        scale = around([x for _, _, lines in drawn for line in lines for x, _ in line], "log", seconds=True)
        figures += [
            _distribution(name if len(results) > 1 else "", result, latency, lines, scale)
            for name, result, lines in drawn
            if any(lines)
        ]
    return figures


def timelines(results: Named) -> list[Figure]:
    """Stages and the TTFT of their requests over time."""
    return [
        figure
        for name, result in results
        if (figure := _timeline(name if len(results) > 1 else "", result)) is not None
    ]


def _curve(results: Named, latency: str, *, first: bool) -> Figure | None:
    drawn = lines(results)
    thin = {place for place, line in enumerate(drawn) if first and line.place > 0}
    points = [
        (place, stage, x, p50, p99)
        for place, line in enumerate(drawn)
        for stage in sorted(line.stages, key=lambda each: rate_of(each) or 0.0)
        if (x := rate_of(stage)) is not None
        and (p50 := stage.quantile(latency, 0.5))
        and (p99 := stage.quantile(latency, 0.99))
    ]
    if not points:
        return None
    thresholds = _thresholds(drawn, latency)
    # Knees are of a result; the colour is that of its first line.
    of = {line.place: place for place, line in reversed(list(enumerate(drawn)))}
    knees = [(at, each) for at in of.values() if at not in thin for each in _knees(drawn[at].result, latency)]
    seen = [
        value
        for place, *_, p50, p99 in points
        for value in ([p99.estimate] if place in thin else (*_extent(p50), *_extent(p99)))
    ]
    y = around(seen + [v for v, _ in thresholds], "log", seconds=True)
    xs = [x for _, _, x, _, _ in points] + [v for _, each in knees for v in (each.upper, each.estimate) if v]
    canvas = Canvas(around(xs), y)
    for place, each in knees:
        canvas.band(each.lower or 0.0, each.upper or canvas.x.high, each.estimate, colour(place), _knee(each))
    for threshold, label in thresholds:
        canvas.rule(threshold, label)
    for place, group in groupby(sorted(points, key=lambda point: point[0] not in thin), key=lambda point: point[0]):
        rows = list(group)
        if place in thin:
            canvas.line([(x, p99.estimate) for _, _, x, _, p99 in rows], colour(place), "thin")
            continue
        canvas.line([(x, p50.estimate) for _, _, x, p50, _ in rows], colour(place), "dashed")
        canvas.line([(x, p99.estimate) for _, _, x, _, p99 in rows], colour(place))
        for _, stage, x, p50, p99 in rows:
            for found in (p50, p99):
                _point(canvas, x, found, colour(place), stage, latency)
    if len(drawn) > len(results):
        for place, stage, x, _, p99 in points:
            canvas.label(x, p99.estimate, drawn[place].name if len(results) == 1 else stage.name)
    note = "p99 solid, p50 dashed; bars are 95% intervals, hollow points have too few samples."
    note += " The band is the interval of the knee." if knees else ""
    note += " Thin: the p99 of those before." if thin else ""
    return Figure(
        f"{NAMES[latency]} over load",
        canvas.svg("requests per second, load that was there already included", f"{NAMES[latency]}, p50 and p99"),
        note,
        [key for place, key in enumerate(_keys(drawn)) if any(point[0] == place for point in points)],
    )


def _extent(found: Quantile) -> tuple[float, ...]:
    if found.lower is None or found.upper is None:
        return (found.estimate,)
    return found.estimate, found.lower, found.upper


def _point(canvas: Canvas, x: float, found: Quantile, colour: str, stage: Stage, latency: str) -> None:
    if found.lower is not None and found.upper is not None:
        canvas.whisker(x, found.lower, found.upper, colour)
    title = f"{stage.name}: {NAMES[latency]} p{found.q * 100:g} {format_duration(found.estimate)} of {found.count:,} samples"
    canvas.dot(x, found.estimate, colour, title, hollow=not found.has_enough_samples)


def _thresholds(drawn: Sequence[Line], latency: str) -> list[tuple[float, str]]:
    """(seconds, label) of the contracts, with the lines that each is for if it is not for all."""
    held: dict[tuple[float, str], set[int]] = {}
    for place, line in enumerate(drawn):
        for slo in {slo.name: slo for stage in line.stages for slo in contracted(line.result, stage)}.values():
            if slo.signal == latency and slo.threshold_s is not None:
                said = f"{slo.name}: {_percent(float(slo.objective))} within {format_duration(slo.threshold_s)}"
                held.setdefault((slo.threshold_s, said), set()).add(place)
    return [
        (
            seconds,
            label
            if len(places) == len(drawn)
            else f"{label} ({', '.join(drawn[each].name for each in sorted(places))})",
        )
        for (seconds, label), places in sorted(held.items())
    ]


def _knees(result: Result, latency: str) -> list[Capacity]:
    names = {slo.name for slo in result.slos if slo.signal == latency}
    return [each for each in result.capacities if each.slo in names and each.verdict == "found"]


def _knee(each: Capacity) -> str:
    bounds = " to ".join("?" if bound is None else f"{bound:.3g}" for bound in (each.lower, each.upper))
    return f"{each.slo} holds up to {bounds} requests/s ({each.confidence:.0%} interval)"


def _frontier(results: Named, latency: str) -> Figure | None:
    drawn = lines(results)
    per_gpu = all(stage.gpus for line in drawn for stage in line.stages)

    def throughput(stage: Stage) -> float | None:
        return stage.output_tokens_per_s_per_gpu if per_gpu else stage.output_tokens_per_s

    points = [
        (place, stage, x, p99)
        for place, line in enumerate(drawn)
        for stage in sorted(line.stages, key=lambda each: rate_of(each) or 0.0)
        if (x := throughput(stage)) is not None and (p99 := stage.quantile(latency, 0.99))
    ]
    if not points:
        return None
    y = around([p99.estimate for *_, p99 in points], "log", seconds=True)
    canvas = Canvas(around([x for _, _, x, _ in points]), y)
    for place, group in groupby(points, key=lambda point: point[0]):
        canvas.line([(x, p99.estimate) for _, _, x, p99 in group], colour(place), "thin")
    for place, stage, x, p99 in points:
        beaten = any(ox >= x and o.estimate < p99.estimate for op, _, ox, o in points if op == place)
        title = f"{stage.name}: {x:,.4g} tokens/s, {NAMES[latency]} p99 {format_duration(p99.estimate)}"
        canvas.dot(x, p99.estimate, colour(place), title, hollow=beaten)
        if len(points) <= 12:
            canvas.label(x, p99.estimate, stage.name)
    unit = "output tokens per second and GPU" if per_gpu else "output tokens per second"
    return Figure(
        f"Throughput against {NAMES[latency]}",
        canvas.svg(unit, f"{NAMES[latency]}, p99"),
        "Full points are the frontier: no other stage of the same line is both faster and carries as much.",
        _keys(drawn),
    )


def _lines(result: Result, latency: str) -> list[list[tuple[float, float]]]:
    """A line a stage, of (seconds, quantile): from its samples, else through the quantiles that are known."""
    rows: dict[int, list[Request]] = {}
    for each in result.requests:
        rows.setdefault(each.stage, []).append(each)
    found = []
    for index, stage in enumerate(result.stages):
        values = sorted(samples(rows.get(index, ()))[latency])
        if values:
            found.append([(values[round(q * (len(values) - 1))], q) for q in _places(len(values))])
        else:
            found.append([(each.estimate, each.q) for each in stage.latencies.get(latency, ()) if each.q < 1])
    return found


def _places(count: int) -> Iterator[float]:
    """Quantiles from 0 up to the last that `count` samples can show, evenly on the tail's scale."""
    steps = min(count, MOST_POINTS)
    yield from (1 - count ** (-step / steps) for step in range(steps + 1))


def _distribution(
    name: str, result: Result, latency: str, lines: Sequence[Sequence[tuple[float, float]]], x: Scale
) -> Figure:
    highest = max((q for line in lines for _, q in line), default=0.99)
    canvas = Canvas(x, Scale(0.0, min(0.9999, max(0.99, highest)), "tail"))
    for place, line in enumerate(lines):
        canvas.line([(seconds, min(q, 0.9999)) for seconds, q in line], shade(place, len(lines)))
    keys = [
        (shade(place, len(lines)), stage.name)
        for place, (stage, line) in enumerate(zip(result.stages, lines, strict=True))
        if line
    ]
    title = f"Distribution of {NAMES[latency]}"
    return Figure(
        f"{title}, {name}" if name else title,
        canvas.svg(NAMES[latency], "share of samples up to it"),
        "Each further nine is as wide as the first, so that tails show.",
        keys,
    )


def _timeline(name: str, result: Result) -> Figure | None:
    rows = [each for each in result.requests if each.start_s is not None]
    if not rows or any(stage.begin_s is None for stage in result.stages):
        return None
    chosen = rows[:: -(-len(rows) // MOST_SPECKS)]
    known = [each.ttft_s for each in chosen if each.ttft_s is not None]
    ends = [(stage.begin_s or 0.0) + (stage.sending_s or stage.duration_s or 0.0) for stage in result.stages]
    canvas = Canvas(around([*ends, *(each.start_s or 0.0 for each in rows)]), around(known, "log", seconds=True))
    for place, (stage, end) in enumerate(zip(result.stages, ends, strict=True)):
        canvas.stripe(stage.begin_s or 0.0, end, stage.name, filled=place % 2 == 0)
    for place in range(len(result.stages)):
        points = [(each.start_s or 0.0, each.ttft_s) for each in chosen if each.stage == place and each.ttft_s]
        canvas.specks(points, shade(place, len(result.stages)))
    failed = [each.start_s or 0.0 for each in rows if each.outcome not in ("ok", "wrong_answer")]
    canvas.crosses(failed[:: -(-len(failed) // 300) or 1])
    title = "Stages over time"
    return Figure(
        f"{title}, {name}" if name else title,
        canvas.svg("seconds since the start", "TTFT of each request"),
        f"Crosses at the upper edge: {len(failed):,} requests that were not answered properly." if failed else "",
        [(shade(place, len(result.stages)), stage.name) for place, stage in enumerate(result.stages)],
    )


def _keys(drawn: Sequence[Line]) -> list[tuple[str, str]]:
    return [(colour(place), line.name) for place, line in enumerate(drawn)] if len(drawn) > 1 else []


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.6g}%"
