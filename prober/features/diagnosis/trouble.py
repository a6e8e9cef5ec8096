"""Begin and end of a trouble: a budget that burns too fast, or a latency that grows steadily. Times are seconds of one clock."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from statistics import correlation, fmean, linear_regression, median
from typing import NamedTuple

from prober.features.diagnosis.clues import GROWN
from prober.measure.objective import Slo, count_events, format_percent
from prober.measure.outcome import Trait
from prober.measure.result import ProbeResult
from prober.measure.timeline import format_duration

BREACH_BURN_RATE = 3
MIN_BAD_EVENTS, MIN_BAD_AGAIN = 3, 2
MIN_S = 10.0  # between bad events: one long prompt delays all probes of a second
HOLD_S = 30.0  # least time without a bad event until trouble is over
# Log likelihood ratios: of trouble to good times for a begin, and for a return; of good times to trouble for an end.
SURE, AGAIN, OVER = math.log(10_000), math.log(1_000), math.log(100)
# Answers and seconds per point of a latency's course, which covers some hours.
POINT_ANSWERS, POINT_S, MAX_POINTS = 20, 60.0, 90
MIN_GROWING_POINTS = 6
CLEARLY = 6.0  # standard errors of the slope of a growing latency


@dataclass(frozen=True, slots=True)
class Burn:
    """An SLO's budget that burns too fast.

    signal: the SLO's signal, or `success` if failures that do not depend on speed burn its budget
    since_s, until_s: due times of its first and last bad probe
    text: what is bad, such as `TTFT 1.1 s, 300 ms allowed`
    """

    signal: str
    threshold_s: float
    since_s: float
    until_s: float
    text: str


def due_s(probe: ProbeResult) -> float:
    """Due time of the probe in seconds."""
    return probe.timeline.intended_ns / 1e9


def burn(slo: Slo, probes: Sequence[ProbeResult], *, is_expected: bool = False) -> Burn | None:
    """The burn of an SLO's budget that lasts until the last of these probes, if any. Wrong answers are left out.

    probes: in order of time
    is_expected: less evidence suffices, because the budget has just burned or the target's state says so
    """
    if slo.signal == "quality":
        return None
    timed = [probe for probe in probes if probe.outcome.traits & (Trait.ANSWERED | Trait.SLOW)]
    for judged in (timed, probes) if slo.threshold_s is not None else (probes,):
        counted = [(probe, *counts) for probe in judged if (counts := count_events(slo, probe))[0]]
        if sum(bad for _, _, bad in counted) < (MIN_BAD_AGAIN if is_expected else MIN_BAD_EVENTS):
            continue
        # Events of one answer are alike, so they weigh as the root of their number.
        samples = [(due_s(probe), bad / events, math.sqrt(events)) for probe, events, bad in counted]
        if (span := _span(samples, float(slo.error_budget_ratio), is_expected)) is not None:
            first, last = span
            signal = slo.signal if judged is timed else "success"
            text = _bad_text(
                slo, signal, [probe for probe, _, _ in counted[first:]], [ratio for _, ratio, _ in samples[first:]]
            )
            threshold_s = (slo.threshold_s or 0.0) if judged is timed else 0.0
            return Burn(signal, threshold_s, samples[first][0], samples[last][0], text)
    return None


def _span(samples: Sequence[tuple[float, float, float]], budget: float, is_expected: bool) -> tuple[int, int] | None:
    """Find a trouble that lasts until now: (indices of its first and last bad probe); None without one.

    It begins where the sum of bad minus allowed events is least (Page's CUSUM). It is a trouble if its log likelihood ratio to
    good times is large, or if all samples burn the budget too fast. It is over once the events since then are much more likely in good
    times, and the target was good for longer than ever in between.

    samples: (time, share of bad events, weight) of each probe
    """
    allowed = BREACH_BURN_RATE * budget
    sums = [0.0, *accumulate(ratio - allowed for _, ratio, _ in samples)]
    begin = sums.index(min(sums))
    # Of an answer with many events, some are bad in good times too.
    clearly = max(allowed, fmean(ratio for _, ratio, _ in samples[begin:]) / 2) if begin < len(samples) else 1.0
    bad = [place for place in range(begin, len(samples)) if samples[place][1] > clearly]
    if not bad or allowed >= 1:
        return None
    first, last = bad[0], bad[-1]
    trouble = max(allowed, (sum(ratio for _, ratio, _ in samples[first : last + 1]) + 1) / (last - first + 3))
    good, worse = math.log((1 - budget) / (1 - trouble)), math.log(budget / trouble)
    evidences = [weight * ((1 - ratio) * good + ratio * worse) for _, ratio, weight in samples[first:]]
    sure, least_s = (AGAIN, 0.0) if is_expected else (SURE, MIN_S)
    is_sure = -sum(evidences[: last - first + 1]) >= sure and samples[last][0] - samples[first][0] >= least_s
    if sums[-1] <= 0 and not is_sure:
        return None
    over = 0.0
    for evidence in evidences:
        over = max(0.0, over + evidence)
    pause_s = max((samples[after][0] - samples[before][0] for before, after in pairwise(bad)), default=0.0)
    pause_s = max(pause_s, HOLD_S)
    is_over = over >= OVER and samples[-1][0] - samples[last][0] > pause_s
    return None if is_over else (first, last)


def _bad_text(slo: Slo, signal: str, probes: Sequence[ProbeResult], ratios: Sequence[float]) -> str:
    """Describe what has been bad since the trouble began, and what is allowed."""
    allowed = f"{format_percent(slo.error_budget_ratio)} allowed"
    if signal == "success":
        return f"{_percent(fmean(ratios))} of {len(ratios)} probes failed, {allowed}"
    name, limit = signal.upper().replace("_", " "), format_duration(slo.threshold_s or 0.0)
    values = [value for probe in probes if (value := getattr(probe.timeline, f"{signal}_s", None)) is not None]
    if values and median(values) > (slo.threshold_s or 0.0):
        return f"{name} {format_duration(median(values))}, {limit} allowed"
    return f"{name} above {limit} in {_percent(fmean(ratios))} of the {'tokens' if signal == 'itl' else 'probes'}, {allowed}"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.2g}%" if ratio < 0.995 else f"{ratio:.0%}"


class Growth(NamedTuple):
    """A latency that has grown steadily since `since_s`. text: by how much"""

    since_s: float
    text: str


@dataclass(slots=True)
class Course:
    """Course of a latency over some hours. Each point is the mean logarithm of some answers."""

    points: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MAX_POINTS))
    _begin_s: float = 0.0
    _logs: list[float] = field(default_factory=list)

    def add(self, at_s: float, value_s: float) -> None:
        """Add the latency of an answer. Call in order of time."""
        self._begin_s = self._begin_s if self._logs else at_s
        self._logs.append(math.log(value_s))
        if len(self._logs) >= POINT_ANSWERS and at_s - self._begin_s >= POINT_S:
            self.points.append(((self._begin_s + at_s) / 2, fmean(self._logs)))
            self._logs = []

    def growth(self) -> Growth | None:
        """Steady growth up to now: the course fits a level followed by a rising line clearly, and better than two levels.

        When the latency has lost half of its growth, the course restarts.
        """
        size = len(self.points)
        if size < MIN_GROWING_POINTS:
            return None
        times_s, logs = zip(*self.points, strict=True)
        means = [fmean(logs[max(0, place - 2) : place + 1]) for place in range(size)]
        if means[-1] - min(means) < math.log(GROWN):
            return None
        lines = [[max(0.0, at_s - begin_s) for at_s in times_s] for begin_s in times_s[: 1 - MIN_GROWING_POINTS]]
        line = max(lines, key=lambda line: correlation(line, logs))
        fit = correlation(line, logs)
        # The point that the step falls into has answers from before and after it.
        others = [[place for place in range(size) if place != mixed] for mixed in range(1, size - 1)]
        steps = [
            ([float(place > mixed) for place in of], [logs[place] for place in of])
            for mixed, of in enumerate(others, 1)
        ]
        step = max(correlation(after, of) for after, of in steps)
        slope, begin = linear_regression(line, logs)
        end = begin + slope * line[-1]
        if end - begin < math.log(GROWN) or fit <= step or fit**2 * (size - 2) < CLEARLY**2 * (1 - fit**2):
            return None
        if len(self._logs) >= POINT_ANSWERS / 2 and fmean(self._logs) < (begin + end) / 2:
            self.points.clear()
            return None
        before, now = format_duration(math.exp(begin)), format_duration(math.exp(end))
        text = f"by {_percent(math.expm1(60 * slope))} a minute: {now} after {before}"
        return Growth(times_s[lines.index(line)], text)
