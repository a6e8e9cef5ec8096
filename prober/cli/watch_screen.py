"""The screen of `prober watch`: makes text lines for a width and a height, without input and output."""

import math
from collections.abc import Iterable, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import ConsoleOptions, RenderResult
from rich.text import Text

from prober.cli.watch_words import (
    LATENCIES,
    SHOWN,
    TOO_FEW,
    Point,
    Story,
    Watched,
    as_ascii,
    by_trouble,
    concern_words,
    doubts,
    ending,
    facts,
    percentiles,
)
from prober.config.units import duration_text
from prober.measure.printable import one_line
from prober.measure.timeline import format_duration
from prober.statistics.quantiles import percentile_name
from prober.web.targets import SIGNALS, SIGNS, ConcernAnswer, Kind, Snapshot, TargetAnswer, clock_time, time_of_day

SPANS_S = (60, 300, 900)  # of the chart: the shortest that has all probes, else the longest
MIN_CHART_ROWS, MAX_CHART_ROWS = 4, 12
INDENT = 12  # of a continued line
MIN_DETAIL = 9  # lines in which a further target is shown
MAX_NOT_OK, MIN_NOT_OK = 8, 2  # lines of probes that were not ok
COLUMN, COUNT = 9, 8  # cells of a percentile and of a number of samples
NAME, MIN_WORDS = 28, 20  # cells of a target's name at most, and of its concern at least
MARKS: dict[str, Kind] = {"✗+": "bad", "•+": "good", "─+": "few"}  # in the chart
STYLES: dict[Kind, str] = {"good": "green", "bad": "bold red", "few": "yellow", "past": "magenta", "unknown": "cyan"}


class Frame:
    """Rich renderable of the screen, at the current size of the terminal."""

    def __init__(self, watched: Watched, *, is_utf8: bool = True) -> None:
        self._watched, self._is_utf8 = watched, is_utf8

    def __rich_console__(self, console: object, options: ConsoleOptions) -> RenderResult:
        width, height = options.size
        lines = screen(self._watched, width, height, is_utf8=self._is_utf8)
        yield Text("\n", no_wrap=True, end="").join(lines)


def screen(watched: Watched, width: int, height: int, *, is_utf8: bool = True) -> list[Text]:
    """At most `height` lines of at most `width` cells: one line for each target, then as many targets in detail as fit."""
    snapshot = watched.snapshot
    if snapshot is None:  # the terminal is set up before the first one
        return []
    ranked = by_trouble(snapshot)
    lines = _head(snapshot)
    if len(ranked) > 1:
        lines += _overview(ranked, snapshot.time, width, max(2, height // 3))
    for target, fact in ranked:
        if (room := height - len(lines)) < MIN_DETAIL and target is not ranked[0][0]:
            break
        lines += [*_detail(snapshot, watched, target, fact, width, room - 1), Text()]
    for line in lines[:height]:
        line.truncate(width, overflow="ellipsis")
        if not is_utf8:
            line.plain = as_ascii(line.plain)
    return lines[:height]


def chart(
    points: Iterable[Point],
    begin_unix_s: float,
    now_unix_s: float,
    width: int,
    rows: int,
    threshold_s: float | None = None,
) -> list[Text]:
    """Chart of TTFT over time: a title, `rows` lines and the axis of time. threshold_s: of an SLO, drawn if it is on the scale"""
    span_s = next((span for span in SPANS_S if now_unix_s - begin_unix_s <= span), SPANS_S[-1])
    shown = [point for point in points if now_unix_s - point.unix_s <= span_s]
    top_s = _scale(max((point.ttft_s or 0.0 for point in shown), default=0.0))
    top = format_duration(top_s)
    left = cell_len(top) + 1
    columns = max(1, width - left - 1)
    cells = [[" "] * columns for _ in range(rows)]

    def row(seconds: float) -> int:
        return min(rows - 1, max(0, rows - 1 - math.floor(seconds / top_s * rows)))

    title = "TTFT of each probe: • answered, ✗ failed"
    if threshold_s is not None and threshold_s <= top_s:
        cells[row(threshold_s)] = ["─"] * columns
        title += f", ─ SLO ({format_duration(threshold_s)})"
    for point in sorted(shown, key=lambda point: point.ttft_s is None):  # failures last: no answer hides one
        column = min(columns - 1, max(0, math.floor((1 - (now_unix_s - point.unix_s) / span_s) * columns)))
        place, mark = (rows - 1, "✗") if point.ttft_s is None else (row(point.ttft_s), "•")
        cells[place][column] = mark
    lines = [Text(title, "dim")]
    for number, drawn in enumerate(cells):
        label, line = "" if number else top, Text("".join(drawn))
        for marks, kind in MARKS.items():
            line.highlight_regex(marks, STYLES[kind])
        lines.append(Text(f"{label.rjust(left)}{'┤' if label else '│'}") + line)
    axis = f"{'0'.rjust(left)}└{duration_text(span_s)} ago"
    return [*lines, Text(f"{set_cell_size(axis, max(0, width - 3))}now")]


def _scale(largest_s: float) -> float:
    """End of the axis: the value rounded up to 1, 2 or 5 times a power of ten."""
    if largest_s <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(largest_s))
    return next((step * power for step in (1, 2, 5) if largest_s <= step * power), 10 * power)


def _head(snapshot: Snapshot) -> list[Text]:
    """Lines with the title, the headline, and doubts about the other data."""
    worst: Kind = min((fact.kind for fact in snapshot.concerns), key=list(SIGNS).index, default="unknown")
    title = Text(f"prober watch  {time_of_day(snapshot.time)} UTC  ") + _mark(worst, snapshot.headline)
    return [title, *(_mark("bad", doubt) for doubt in doubts(snapshot)), Text()]


def _overview(
    ranked: Sequence[tuple[TargetAnswer, ConcernAnswer]], now_unix_s: float, width: int, most: int
) -> list[Text]:
    """A line for each of the first `most` targets, with as many latencies as fit."""
    name_width = min(NAME, max(cell_len(one_line(target.name)) for target, _ in ranked))
    latency_width = len(SHOWN) * COLUMN + COUNT
    rest = width - name_width - 3
    signals = LATENCIES[: max(0, (rest - MIN_WORDS) // latency_width)]
    words_width = max(0, rest - len(signals) * latency_width)
    lines = [Text(" " * (name_width + 3 + words_width) + "".join(map(_columns, signals)), "dim")] if signals else []
    for target, fact in ranked[:most]:
        line = Text(f"{SIGNS[fact.kind]} ", STYLES[fact.kind]).append(_sized(target.name, name_width), "bold")
        line.append(" " + _sized(concern_words(fact, now_unix_s), words_width), STYLES[fact.kind])
        line.append("".join(_values(target, signal) for signal in signals), "not bold default")
        lines.append(line)
    if len(ranked) > most:
        lines.append(Text(f"  {most} of {len(ranked)} targets, those in most trouble first", "dim"))
    return [*lines, Text()]


def _detail(
    snapshot: Snapshot, watched: Watched, target: TargetAnswer, fact: ConcernAnswer, width: int, room: int
) -> list[Text]:
    """A target in at most `room` lines. The chart gets the lines that the other parts leave."""
    story = watched.story(target)
    top = [
        _title(target),
        _mark(fact.kind, concern_words(fact, snapshot.time)),
        *_percentile_table(target, story, snapshot.time),
        *(
            Text(name.ljust(10)) + (_mark(kind, text) if kind else Text(text))
            for name, kind, text in facts(target, snapshot.time)
        ),
    ]
    is_drawn = any(point.ttft_s is not None for point in story.points)
    top = _folded(top, width, room - len(top) - 1 - MIN_NOT_OK - (MIN_CHART_ROWS + 2 if is_drawn else 0))
    free = room - len(top) - 1 - (MIN_CHART_ROWS + 2 if is_drawn else 0)
    ends = _not_ok(story, snapshot.time, max(MIN_NOT_OK, min(MAX_NOT_OK, free)))
    rows = min(MAX_CHART_ROWS, room - len(top) - len(ends) - 2)
    if not is_drawn or rows < MIN_CHART_ROWS:
        return [*top, *ends][:room]
    threshold_s = min((slo.threshold for slo in target.slos if slo.signal == "ttft" and slo.threshold), default=None)
    drawn = chart(story.points, watched.begin_unix_s, snapshot.time, width, rows, threshold_s)
    return [*top, *drawn, *ends]


def _title(target: TargetAnswer) -> Text:
    line = Text(one_line(target.name), "bold")
    others = (target.model or "model not known yet", target.engine, f"state {target.state}")
    line.append("".join(f" · {one_line(text)}" for text in others if text), "not bold")
    return line


def _percentile_table(target: TargetAnswer, story: Story, now_unix_s: float) -> list[Text]:
    rows = target.busiest_latencies
    if not rows:
        return [Text(target.no_latency)]
    lines = [Text("10min".ljust(5) + _columns(), "dim")]
    lines += [Text(SIGNALS[signal].ljust(5)) + Text(_values(target, signal)) for signal in LATENCIES]
    if any(percentiles(target, signal, kept=True)[0] > percentiles(target, signal)[0] for signal in LATENCIES):
        lines.append(Text("since the start, the last 4,096 at most", "dim"))
        lines += [Text(SIGNALS[signal].ljust(5)) + Text(_values(target, signal, kept=True)) for signal in LATENCIES]
    if story.answered_unix_s is not None:
        age_s = max(0.0, now_unix_s - story.answered_unix_s)
        others = target.other_workloads
        of = f"; workload {one_line(rows[0].workload)} of {others + 1}" if others else ""
        lines[0].append(f"   latest answered probe {age_s:.0f} s ago{of}")
    if any(len(percentiles(target, signal)[1].keys() & set(SHOWN)) < len(SHOWN) for signal in LATENCIES):
        lines.append(Text(TOO_FEW, "dim"))
    return lines


def _columns(signal: str = "") -> str:
    """The column heads of the percentiles of a latency."""
    name = f"{SIGNALS[signal]} " if signal else ""
    heads = [f"{name if q == SHOWN[0] else ''}{percentile_name(q)}" for q in SHOWN]
    return "".join(head.rjust(COLUMN) for head in heads) + "samples".rjust(COUNT)


def _values(target: TargetAnswer, signal: str, *, kept: bool = False) -> str:
    count, known = percentiles(target, signal, kept=kept)
    return "".join(format_duration(known.get(q)).rjust(COLUMN) for q in SHOWN) + f"{count:,}".rjust(COUNT)


def _not_ok(story: Story, now_unix_s: float, most: int) -> list[Text]:
    """Lines on the stored probes that were not ok, grouped by outcome: time of the last one, count, text; latest first."""
    endings: dict[str, list[float]] = {}
    for probe in reversed(story.not_ok):
        endings.setdefault(ending(probe), []).append(probe.time)
    if not endings:
        return []
    lines = [Text(f"The last {len(story.not_ok):,} probes that were not ok: when last, how many, why", "dim")]
    for words, times in list(endings.items())[:most]:
        lines.append(Text(f"  {clock_time(max(times), now_unix_s)} {len(times):>4,} × {words}"))
    return lines


def _mark(kind: Kind, words: str) -> Text:
    """A sign for the kind, then the text: colour alone must carry no meaning."""
    return Text(f"{SIGNS[kind]} {words}", STYLES[kind])


def _folded(lines: Sequence[Text], width: int, spare: int) -> list[Text]:
    """The lines, with those that are too wide wrapped into at most `spare` further lines."""
    folded: list[Text] = []
    for line in lines:
        rest = line
        while (
            spare > 0 and (place := rest.plain.rfind(" ", INDENT + 1, width + 1)) > 0 and cell_len(rest.plain) > width
        ):
            begin, rest = rest.divide([place + 1])
            folded.append(begin)
            rest = Text(" " * INDENT) + rest
            spare -= 1
        folded.append(rest)
    return folded


def _sized(text: str, width: int) -> str:
    """The text in exactly `width` cells, with an ellipsis if it is cut."""
    words = one_line(text)
    return set_cell_size(words, width) if cell_len(words) <= width else set_cell_size(words, width - 1) + "…"
