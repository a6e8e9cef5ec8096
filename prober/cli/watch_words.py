"""The sentences of `prober watch`: what snapshots say of a target, as text without colours and without input and output."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from prober.config.units import duration_text
from prober.measure.outcome import BAD, NEUTRAL, Outcome
from prober.measure.printable import one_line
from prober.measure.timeline_text import format_duration
from prober.statistics.quantiles import MIN_SAMPLES_BY_QUANTILE
from prober.web.api_types import ConcernAnswer, DriftAnswer, EndedProbe, SloAnswer, Snapshot, TargetAnswer
from prober.web.page.filters import LOW_RATIO, SLO_STATES, clock_time, share
from prober.web.page.view import SIGNALS, Kind

SHOWN = (0.5, 0.95, 0.99)  # percentiles
LATENCIES = ("ttft", "itl")
MAX_POINTS, MAX_NOT_OK = 4_096, 200
UNTRUSTED = "The prober itself is late: its latencies are not judged. Failures are."
TOO_FEW = "–: too few samples; " + ", ".join(f"p{q * 100:g} needs {MIN_SAMPLES_BY_QUANTILE[q]:,}" for q in SHOWN)
# One character for each other one, so that nothing moves. Other characters become question marks.
ASCII = str.maketrans("✓✗▲•│─┤└…–·×≤→", "+x!*|-|+~--x<>")


@dataclass(frozen=True, slots=True)
class Point:
    """A probe of the chart: when it was due, in Unix seconds, and its TTFT; None if the target failed."""

    unix_s: float
    ttft_s: float | None


@dataclass(slots=True)
class Story:
    """Observations of a target since the start. answered_unix_s: the due time of its latest answer."""

    points: deque[Point] = field(default_factory=lambda: deque(maxlen=MAX_POINTS))
    not_ok: deque[EndedProbe] = field(default_factory=lambda: deque(maxlen=MAX_NOT_OK))
    answered_unix_s: float | None = None

    def add(self, probe: EndedProbe) -> None:
        """A probe has ended. Latencies that the product does not count are no points: those of warm-ups and of cached answers."""
        if probe.outcome != Outcome.OK:
            self.not_ok.append(probe)
        if probe.outcome in BAD:
            self.points.append(Point(probe.time, None))
        elif probe.outcome not in NEUTRAL and probe.ttft_s is not None:
            self.answered_unix_s = max(probe.time, self.answered_unix_s or 0.0)
            if not (probe.warm_up or probe.cached or probe.on_request):
                self.points.append(Point(probe.time, probe.ttft_s))


class Watched:
    """The latest snapshot, and what those before it have left."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = None
        self.begin_unix_s = 0.0
        self._stories: dict[str, Story] = {}

    def add(self, snapshot: Snapshot) -> None:
        """The next snapshot."""
        if self.snapshot is None:
            self.begin_unix_s = snapshot.time
        self.snapshot = snapshot
        for probe in snapshot.probes:
            self._stories.setdefault(probe.target, Story()).add(probe)
        for name in self._stories.keys() - {target.name for target in snapshot.targets}:
            del self._stories[name]

    def story(self, target: TargetAnswer) -> Story:
        """The observations of a target."""
        return self._stories.get(target.name) or Story()


def plain_lines(watched: Watched, snapshot: Snapshot) -> list[str]:
    """Lines of a snapshot that was just added: events, probes that did not end well, doubts about the rest, each target."""
    lines = [
        f"{time_of_day(event.unix_s)} {one_line(': '.join(filter(None, (event.target, event.text))))}"
        for event in snapshot.events
    ]
    lines += [
        f"{time_of_day(probe.time)} {one_line(probe.target)}: {ending(probe)}"
        for probe in snapshot.probes
        if probe.outcome != Outcome.OK
    ]
    lines += [f"{time_of_day(snapshot.time)} {doubt}" for doubt in doubts(snapshot)]
    return lines + [f"{time_of_day(snapshot.time)} {status(*pair)}" for pair in by_trouble(snapshot)]


def summary(watched: Watched) -> list[str]:
    """Lines that stay on the terminal at the end."""
    snapshot = watched.snapshot
    if snapshot is None:
        return ["prober watch ended before its prober had started; nothing was measured"]
    span = duration_text(max(1, round(snapshot.time - watched.begin_unix_s)))
    lines = [f"prober watch, {span} until {time_of_day(snapshot.time)} UTC: {snapshot.headline}", *doubts(snapshot)]
    for target, fact in by_trouble(snapshot):
        story = watched.story(target)
        lines += [status(target, fact), f"  probes: {outcomes(target)}"]
        lines += [f"  {one_line(workload.detail)}" for workload in target.no_data]
        lines += [f"  SLO {slo_name(slo)}: {slo_words(slo, snapshot.time)[1]}" for slo in target.slos]
        lines += [f"  drift: {drift_words(target.drift, snapshot.time)[1]}", f"  headroom: {headroom_words(target)[1]}"]
        if story.not_ok:
            last = story.not_ok[-1]
            lines.append(f"  last one that was not ok: {clock_time(last.time, snapshot.time)} {ending(last)}")
    return lines


def doubts(snapshot: Snapshot) -> list[str]:
    """Doubts about the rest: the prober's own lateness, a configuration that is not in effect."""
    problems = [one_line(f"{problem.headline}: {'; '.join(problem.mistakes)}") for problem in snapshot.problems]
    return [*([] if snapshot.trusted else [UNTRUSTED]), *problems]


def by_trouble(snapshot: Snapshot) -> list[tuple[TargetAnswer, ConcernAnswer]]:
    """The targets with their concerns, worst first, otherwise in the order of the configuration."""
    return sorted(zip(snapshot.targets, snapshot.concerns, strict=True), key=lambda pair: pair[1].rank)


def status(target: TargetAnswer, fact: ConcernAnswer) -> str:
    """A target in one line: its state, the concern, percentiles with their sample counts."""
    detail = f" ({one_line(fact.detail)})" if fact.detail and fact.kind != "good" else ""
    words = f"{one_line(target.name)}: {concern_words(target, fact)}{detail}"
    for signal in LATENCIES if target.quantiles else ():
        count, known = percentiles(target, signal)
        values = ", ".join(f"p{q * 100:g} {format_duration(known.get(q))}" for q in SHOWN)
        words += f"; {SIGNALS[signal]} {values} of {count:,}"
    return words


def concern_words(target: TargetAnswer, fact: ConcernAnswer) -> str:
    """The concern; of a target without one, what is known of it."""
    if fact.kind != "good":
        return one_line(fact.text)
    return "no problem found" if target.quantiles else f"{target.state}. {target.no_latency}"


def outcomes(target: TargetAnswer) -> str:
    """Numbers of scheduled probes by outcome, since the target appeared."""
    total = sum(target.outcomes.values())
    listed = ", ".join(f"{count:,} {name}" for name, count in target.outcomes.items())
    return f"{total:,} ended: {listed}" if total else "none has ended yet"


def ending(probe: EndedProbe) -> str:
    """Outcome of a probe, in the server's words where it had some."""
    note = " (not counted as a failure)" if probe.outcome in NEUTRAL else ""
    return one_line(f"{probe.outcome}{': ' if probe.detail else ''}{probe.detail}{note}")


def busiest_workload(target: TargetAnswer) -> str | None:
    """The workload with the most samples, as on the page."""
    counts: dict[str, int] = {}
    for row in target.quantiles:
        counts.setdefault(row.workload, row.count)
    return max(counts, key=lambda workload: counts[workload]) if counts else None


def percentiles(target: TargetAnswer, signal: str, *, kept: bool = False) -> tuple[int, dict[float, float]]:
    """The number of samples of a latency of the busiest workload, and those of its percentiles that have enough of them.

    kept: of all samples that are kept, instead of the last ten minutes
    """
    workload = busiest_workload(target)
    known = target.earlier if kept else target.quantiles
    rows = [row for row in known if (row.workload, row.signal) == (workload, signal)]
    return rows[0].count if rows else 0, {row.q: row.estimate for row in rows if row.enough}


def slo_name(slo: SloAnswer) -> str:
    """The name with the objective, as `ttft, 99% ≤ 500 ms`; the signal too, where it is not the name."""
    signal = "" if slo.slo == slo.signal else f" of {SIGNALS.get(slo.signal, slo.signal)}"
    threshold = f" ≤ {format_duration(slo.threshold)}" if slo.threshold is not None else ""
    return one_line(f"{slo.slo}, {slo.objective * 100:.6g}%{signal}{threshold}")


def slo_words(slo: SloAnswer, now_unix_s: float) -> tuple[Kind, str]:
    """Met, missed or no data, with the counted events."""
    kind, word = SLO_STATES[slo.state]
    events = f"{slo.bad_events:,} bad of {slo.events:,} since {clock_time(slo.since, now_unix_s)}"
    return kind, f"{word}, {one_line(slo.why)} ({events})" if slo.why else f"{word}, {events}"


def drift_words(drifts: Sequence[DriftAnswer], now_unix_s: float) -> tuple[Kind, str]:
    """Slower than the baseline, no drift found, or unknown and why."""
    if not drifts:
        return "unknown", "unknown, no streamed answer has been measured yet"
    if active := [drift for drift in drifts if drift.active]:
        return "few", "; ".join(_slower(drift, now_unix_s) for drift in active)
    learning = ", ".join(dict.fromkeys(_signal(drift) for drift in drifts if drift.phase == "learning"))
    known = [drift for drift in drifts if drift.phase != "learning"]
    depths = {"provisional": "provisional, only a large one would be found"}
    words = (f"{_signal(drift)} ({depths.get(drift.phase, drift.phase)})" for drift in known if not drift.why)
    judged = ", ".join(dict.fromkeys(words))
    if known and not judged:
        return "unknown", one_line(f"unknown, {known[0].why}")
    if not judged:
        return "unknown", f"unknown, the baseline of {learning} is being learnt, which takes days"
    return "good", f"none found in {judged}" + (
        f"; {learning} unknown, its baseline is being learnt" if learning else ""
    )


def headroom_words(target: TargetAnswer) -> tuple[Kind, str]:
    """The free share of the capacity, or that it is unknown and why."""
    if target.capacity is None:
        return "unknown", "unknown, no sweep has found a capacity"
    room = target.headroom
    bound = None if room is None else room.estimate if room.estimate is not None else room.upper
    if room is None or bound is None:
        return "unknown", f"unknown, {target.headroom_unknown}"
    at_most = "" if room.estimate is not None else "at most "
    text = f"{at_most}{share(bound)} free" if bound >= 0 else "none, demand is above the capacity"
    if room.estimate is not None and room.lower is not None and room.upper is not None:
        text += f" [{room.lower:.0%}, {room.upper:.0%}]"
    low = room.lower if room.lower is not None else bound
    return "bad" if bound <= 0 else "unknown" if at_most else "few" if low <= LOW_RATIO else "good", text


def _slower(drift: DriftAnswer, now_unix_s: float) -> str:
    since = f" since {clock_time(drift.since, now_unix_s)}" if drift.since is not None else ""
    shifts = ", ".join(f"p{s.q * 100:g} ×{s.ratio:.3g} [{s.lower:.3g}, {s.upper:.3g}]" for s in drift.shifts)
    size = shifts or ("" if drift.load in ("outside", "missing") else "too few samples since the alarm for its size")
    return one_line(f"{_signal(drift)} slower{since}: {'; '.join(filter(None, (size, drift.why)))}")


def _signal(drift: DriftAnswer) -> str:
    return SIGNALS.get(drift.signal, drift.signal)


def as_ascii(text: str) -> str:
    """The text in as many characters of ASCII."""
    return text.translate(ASCII).encode("ascii", "replace").decode()


def time_of_day(unix_s: float) -> str:
    """Hours, minutes and seconds, UTC."""
    return f"{datetime.fromtimestamp(unix_s, UTC):%H:%M:%S}"
