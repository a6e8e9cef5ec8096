"""SVG paths of a probe's timeline and of a target's sparkline, as values; the templates write the elements."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from prober.measure.outcome import ANSWERED, NEUTRAL, Outcome
from prober.measure.result import ProbeResult
from prober.measure.timeline import Timeline, format_duration
from prober.web.page.view import RECENT
from prober.web.targets import Kind

WIDTH, HEIGHT = 360, 16  # of a timeline
LEFT = 40  # units of a timeline before the due time, for connecting
BAR_WIDTH, BAR_HEIGHT = 4, 24  # of a sparkline


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture. label: the same in words; paths: (CSS class, path data)."""

    width: int
    height: int
    label: str
    paths: Sequence[tuple[str, str]]


def probe_kind(probe: ProbeResult) -> Kind:
    """Good, bad, or unknown if the outcome says nothing about the target."""
    if probe.outcome is Outcome.OK:
        return "good"
    return "unknown" if probe.outcome in NEUTRAL else "bad"


def span_ns(probes: Sequence[ProbeResult]) -> int:
    """The time from due to the right edge of the timelines: nine of ten of them fit."""
    durations = sorted(p.timeline.end_ns - p.timeline.intended_ns for p in probes if p.timeline.end_ns)
    return max(durations[int(0.9 * (len(durations) - 1))], 1) if durations else 10**9


def overrun_s(t: Timeline, span_ns: int) -> float | None:
    """The duration of a probe that ends right of the edge; None if it fits."""
    duration_ns = _end_ns(t) - t.intended_ns
    return duration_ns / 1e9 if duration_ns > span_ns else None


def timeline(probe: ProbeResult, span_ns: int) -> Drawing:
    """A probe over time: connecting, waiting, first token, tokens, and a cross if it failed.

    The width right of the due time stands for `span_ns`. A later point stands at the edge, behind a break.
    """
    t = probe.timeline
    end = _end_ns(t)

    def x(stamp_ns: int) -> int:
        return LEFT + min(WIDTH - LEFT - 2, max(0, round((stamp_ns - t.intended_ns) / span_ns * (WIDTH - LEFT))))

    paths = [("due", f"M{LEFT} 1v14")]
    ready = t.intended_ns
    if t.connection is not None:  # left of the due time if the connection was ready by then, else up to that moment
        connected = t.connection.ready_ns or t.end_ns or t.connection.start_ns
        ready = t.connection.ready_ns or ready
        length, right = x(t.intended_ns + connected - t.connection.start_ns) - LEFT, max(LEFT, x(connected))
        paths.append(("connect", f"M{max(0, right - max(2, length))} 8H{right}"))
    if t.sent_ns is not None and x(t.sent_ns) > (sendable := x(max(t.intended_ns, ready))):
        paths.append(("unsent", f"M{sendable} 8H{x(t.sent_ns)}"))
    start, waited = max(t.sent_ns or t.intended_ns, t.intended_ns), t.first_ns or end
    paths.append(("waiting", f"M{x(start)} 8H{max(x(waited), x(start))}"))
    if t.content_ns:
        paths.append(("token", _ticks(sorted({x(stamp) for stamp in t.content_ns}))))
    if t.first_ns is not None:
        paths.append(("first", f"M{x(t.first_ns)} 1v14"))
    if probe_kind(probe) != "good":
        paths.append((f"end {probe_kind(probe)}", f"M{min(x(end) + 2, WIDTH - 9)} 4l8 8m0-8l-8 8"))
    if overrun_s(t, span_ns) is not None:
        paths += [("gap", f"M{WIDTH - 19} 15l4-14"), ("break", f"M{WIDTH - 21} 15l4-14m4 0l-4 14")]
    label = f"{probe.outcome.value}: TTFT {format_duration(t.ttft_s)}, TPOT {format_duration(t.tpot_s)}, E2E {format_duration(t.e2e_s)}"
    return Drawing(WIDTH, HEIGHT, label, paths)


def sparkline(probes: Sequence[ProbeResult], slots: int = RECENT) -> Drawing:
    """The last probes, oldest first: the height of a bar is its TTFT (or E2E), a failed probe has full height."""
    oldest_first = list(reversed(probes))
    values = [p.timeline.ttft_s or p.timeline.e2e_s or 0.0 if p.outcome in ANSWERED else None for p in oldest_first]
    top = max((value for value in values if value is not None), default=1.0) or 1.0
    bars: dict[Kind, list[str]] = {"good": [], "bad": [], "unknown": []}
    for slot, (probe, value) in enumerate(zip(oldest_first, values, strict=True), slots - len(oldest_first)):
        kind = probe_kind(probe)
        height = BAR_HEIGHT if value is None or kind == "bad" else max(2, round(value / top * BAR_HEIGHT))
        bars[kind].append(f"M{slot * BAR_WIDTH + 1} {BAR_HEIGHT}v-{height}")
    counts = Counter(probe.outcome.value for probe in oldest_first)
    label = f"last {len(oldest_first)} probes: {', '.join(f'{count} {name}' for name, count in counts.most_common())}"
    return Drawing(slots * BAR_WIDTH, BAR_HEIGHT, label, [(kind, "".join(path)) for kind, path in bars.items() if path])


def trend(name: str, values: Sequence[float | None]) -> Drawing:
    """A bar for each reading of the engine, oldest first; none where it is not known."""
    top = max((value for value in values if value is not None), default=0.0) or 1.0
    bars = [
        f"M{slot * BAR_WIDTH + 1} {BAR_HEIGHT}v-{round(value / top * BAR_HEIGHT)}"
        for slot, value in enumerate(values)
        if value is not None
    ]
    return Drawing(
        len(values) * BAR_WIDTH, BAR_HEIGHT, f"{name}: the last {len(values)} readings", [("good", "".join(bars))]
    )


def _end_ns(t: Timeline) -> int:
    """The last stamp that is known."""
    return t.end_ns or (t.content_ns[-1] if t.content_ns else t.sent_ns or t.intended_ns)


def _ticks(places: Sequence[int]) -> str:
    """A stroke at each place, drawn from one to the next."""
    path, last = f"M{places[0]} 4v8", places[0]
    for place in places[1:]:
        path += f"m{place - last}-8v8"
        last = place
    return path
