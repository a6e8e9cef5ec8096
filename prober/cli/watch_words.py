"""Sentences of `prober watch` on snapshots, without colours and without input and output."""

from collections import deque
from dataclasses import dataclass, field

from prober.config.units import duration_text
from prober.measure.buffering import CONSEQUENCE
from prober.measure.outcome import BAD, NEUTRAL, Outcome
from prober.measure.printable import one_line
from prober.measure.timeline import format_duration
from prober.statistics.quantiles import MIN_SAMPLES_BY_QUANTILE, percentile_name
from prober.web.api_types import EndedProbe
from prober.web.targets import (
    NO_DRIFT_DATA,
    SIGNALS,
    ConcernAnswer,
    Kind,
    SloAnswer,
    Snapshot,
    TargetAnswer,
    clock_time,
    signal_name,
    time_of_day,
)

SHOWN = (0.5, 0.95, 0.99)  # percentiles
LATENCIES = ("ttft", "itl")
MAX_POINTS, MAX_NOT_OK = 4_096, 200
TOO_FEW = "–: too few samples; " + ", ".join(
    f"{percentile_name(q)} needs {MIN_SAMPLES_BY_QUANTILE[q]:,}" for q in SHOWN
)
# One character for each other one, so that nothing moves. Other characters become question marks.
ASCII = str.maketrans("✓✗▲◇•│─┤└…–·×≤→", "+x!o*|-|+~--x<>")


@dataclass(frozen=True, slots=True)
class Point:
    """A probe in the chart. unix_s: due time; ttft_s: TTFT, None if the target failed"""

    unix_s: float
    ttft_s: float | None


@dataclass(slots=True)
class Story:
    """Probes of a target since the start. answered_unix_s: due time of the latest answered probe"""

    points: deque[Point] = field(default_factory=lambda: deque(maxlen=MAX_POINTS))
    not_ok: deque[EndedProbe] = field(default_factory=lambda: deque(maxlen=MAX_NOT_OK))
    answered_unix_s: float | None = None

    def add(self, probe: EndedProbe) -> None:
        """Add a probe that has ended. Warm-ups and cached answers are not in the chart, as their latencies do not count."""
        if probe.outcome != Outcome.OK:
            self.not_ok.append(probe)
        if probe.outcome in BAD:
            self.points.append(Point(probe.time, None))
        elif probe.outcome not in NEUTRAL and probe.ttft_s is not None:
            self.answered_unix_s = max(probe.time, self.answered_unix_s or 0.0)
            if not (probe.warm_up or probe.cached or probe.on_request):
                self.points.append(Point(probe.time, probe.ttft_s))


class Watched:
    """The latest snapshot, and probes stored from earlier snapshots."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.begin_unix_s = 0.0
        self._stories: dict[str, Story] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Add the next snapshot, and store its probes."""
        if self.snapshot is None:
            self.begin_unix_s = snapshot.time
        self.snapshot = snapshot
        for probe in snapshot.probes:
            self._stories.setdefault(probe.target, Story()).add(probe)
        for name in self._stories.keys() - {target.name for target in snapshot.targets}:
            del self._stories[name]

    def story(self, target: TargetAnswer) -> Story:
        """The stored probes of a target."""
        return self._stories.get(target.name) or Story()


def plain_lines(watched: Watched, snapshot: Snapshot) -> list[str]:
    """Lines on the latest snapshot: events, probes that did not end well, doubts about the other data, and each target."""
    lines = [
        f"{time_of_day(event.unix_s)} {one_line(': '.join(filter(None, (event.target, event.text))))}"
        for event in snapshot.events
    ]
    ends: dict[str, list[float]] = {}
    for probe in snapshot.probes:
        if probe.outcome != Outcome.OK:
            ends.setdefault(f"{one_line(probe.target)}: {ending(probe)}", []).append(probe.time)
    lines += [
        f"{time_of_day(max(times))} {text}{f', {len(times):,} times' if len(times) > 1 else ''}"
        for text, times in ends.items()
    ]
    lines += [f"{time_of_day(snapshot.time)} {doubt}" for doubt in doubts(snapshot)]
    return lines + [f"{time_of_day(snapshot.time)} {status(*pair, snapshot.time)}" for pair in by_trouble(snapshot)]


def summary(watched: Watched) -> list[str]:
    """Lines that are left on the terminal at the end."""
    snapshot = watched.snapshot
    if snapshot is None:
        return ["prober watch ended before its prober had started; nothing was measured"]
    span = duration_text(max(1, round(snapshot.time - watched.begin_unix_s)))
    lines = [f"prober watch, {span} until {time_of_day(snapshot.time)} UTC: {snapshot.headline}", *doubts(snapshot)]
    for target, concern in by_trouble(snapshot):
        story = watched.story(target)
        lines.append(status(target, concern, snapshot.time))
        lines += [f"  {name}: {text}" for name, _, text in facts(target, snapshot.time)]
        if story.not_ok:
            last = story.not_ok[-1]
            lines.append(f"  last one that was not ok: {clock_time(last.time, snapshot.time)} {ending(last)}")
    return lines


def doubts(snapshot: Snapshot) -> list[str]:
    """Reasons to doubt the data: parts of the configuration that are not in effect."""
    return [one_line(f"{problem.headline}: {'; '.join(problem.mistakes)}") for problem in snapshot.problems]


def by_trouble(snapshot: Snapshot) -> list[tuple[TargetAnswer, ConcernAnswer]]:
    """The targets with their concerns, worst first; equal ones in the order of the configuration."""
    return sorted(zip(snapshot.targets, snapshot.concerns, strict=True), key=lambda pair: pair[1].order)


def concern_words(concern: ConcernAnswer, now_unix_s: float) -> str:
    """The concern as text, with its detail in parentheses if there is one."""
    words = concern.words(now_unix_s)
    return one_line(f"{words} ({concern.detail})" if concern.detail else words)


def status(target: TargetAnswer, concern: ConcernAnswer, now_unix_s: float) -> str:
    """A target in one line: its concern, and its percentiles with their sample counts."""
    words = f"{one_line(target.name)}: {concern_words(concern, now_unix_s)}"
    if concern.kind == "good" and not target.quantiles:
        words += f". {target.no_latency}"
    for signal in LATENCIES if target.quantiles else ():
        count, known = percentiles(target, signal)
        values = ", ".join(f"{percentile_name(q)} {format_duration(known.get(q))}" for q in SHOWN)
        words += f"; {SIGNALS[signal]} {values} of {count:,}"
    return words


def facts(target: TargetAnswer, now_unix_s: float) -> list[tuple[str, Kind | None, str]]:
    """(subject, kind, text) of the probes since the target appeared, each SLO, warnings, drift and headroom."""
    total = sum(target.outcomes.values())
    listed = ", ".join(f"{count:,} {name}" for name, count in target.outcomes.items())
    warnings = [*(workload.detail for workload in target.no_data), *target.warnings]
    warnings += [f"buffered: {CONSEQUENCE}"] if target.buffered else []
    lines: list[tuple[str, Kind | None, str]] = [
        ("probes", None, f"{total:,} ended: {listed}" if total else "none has ended yet"),
        *(("SLO", slo.kind, slo_words(slo, now_unix_s)) for slo in target.slos),
        *([] if target.slos else [("SLO", None, "none is configured")]),
        *(("warning", "few", text) for text in warnings),
        *(("drift", *verdict) for verdict in drift_words(target, now_unix_s)),
        ("headroom", *target.headroom_words),
    ]
    return [(subject, kind, one_line(text)) for subject, kind, text in lines]


def ending(probe: EndedProbe) -> str:
    """Outcome of a probe as text, with the server's message if it sent one."""
    note = " (not counted as a failure)" if probe.outcome in NEUTRAL else ""
    return one_line(f"{probe.outcome}{': ' if probe.detail else ''}{probe.detail}{note}")


def percentiles(target: TargetAnswer, signal: str, *, kept: bool = False) -> tuple[int, dict[float, float]]:
    """(number of samples, percentiles with enough samples) of a latency of the busiest workload.

    kept: use all stored samples instead of those of the last ten minutes
    """
    row = next((row for row in target.busiest_latencies if row.signal == signal), None)
    if row is None:
        return 0, {}
    quantiles = row.earlier if kept else row.recent
    known = {q: quantile.estimate for q, quantile in quantiles.items() if quantile.enough}
    return quantiles[0.5].count if quantiles else 0, known


def slo_words(slo: SloAnswer, now_unix_s: float) -> str:
    """The SLO as text: its objective, met, missed or no data, and the counted events."""
    events = f"{slo.bad_events:,} bad of {slo.events:,} since {clock_time(slo.since, now_unix_s)}"
    events += f"; {slo.recent_words}" if slo.recent_bad else ""
    state = f"{slo.word}, {slo.why} ({events})" if slo.why else f"{slo.word}, {events}"
    return one_line(f"{slo.slo}, {slo.objective_words}: {state}")


def drift_words(target: TargetAnswer, now_unix_s: float) -> list[tuple[Kind, str]]:
    """(kind, text) of each verdict on drift, with the latencies that have this verdict."""
    signals = dict[tuple[Kind, str], list[str]]()
    for drift in target.drift:
        kind, text = drift.words(now_unix_s)
        if drift.active:
            text += f", {', '.join(drift.sizes)}; {drift.why}"
        signals.setdefault((kind, text), []).append(signal_name(drift.signal))
    verdicts = [
        (kind, one_line(f"{', '.join(dict.fromkeys(names))}: {text}")) for (kind, text), names in signals.items()
    ]
    return verdicts or [("unknown", f"unknown, {NO_DRIFT_DATA}")]


def as_ascii(text: str) -> str:
    """The text with every non-ASCII character replaced by an ASCII one."""
    return text.translate(ASCII).encode("ascii", "replace").decode()
