"""Checks from the configured probe rate that each burn alert can fire and that one bad probe cannot fire it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from prober.features.slo.compliance import min_events, percentile_events
from prober.measure.objective import (
    JudgedStream,
    Pair,
    Slo,
    format_percent,
    format_rate,
    max_events_per_probe,
    mean_events_per_probe,
    pairs,
    promql,
)

# `increase()` extrapolates to the ends of its window and may return a few more events than occurred.
EXTRAPOLATION_FACTOR = Decimal("1.1")
PERCENTILE_WINDOWS_S = tuple(3_600 * hours for hours in (1, 2, 4, 6, 12, 24, 48, 72, 168, 336, 720))
CHANCE_Z = 2.326  # 99%, one-sided


@dataclass(frozen=True, slots=True)
class FiringCheck:
    """Result of the check of one burn alert: for one pair of windows and one judged stream.

    guard: events that the long window must hold.
    probes_short, probes_long: expected probes in each window.
    bad_short, bad_long: bad probes in each window at which the alert fires.
    problem: why the alert cannot fire, with the remedy; empty if it can.
    """

    slo: Slo
    use: JudgedStream
    pair: Pair
    guard: int
    probes_short: float
    probes_long: float
    bad_short: int
    bad_long: int
    problem: str

    @property
    def place(self) -> str:
        """Configuration path to change: the SLO's objective if no probe rate can solve the problem, else the SLO."""
        return f"slos.{self.slo.name}" + (".objective" if self.pair.burn * self.slo.error_budget_ratio >= 1 else "")


def guard(slo: Slo, pair: Pair, uses: Sequence[JudgedStream]) -> int:
    """Minimum number of events in the long window, so that one bad probe alone cannot exceed the share burn × budget."""
    most = max(max_events_per_probe(slo, use.max_tokens) for use in uses)
    return math.floor(EXTRAPOLATION_FACTOR * most / (pair.burn * slo.error_budget_ratio)) + 1


def chance(slo: Slo, pair: Pair, uses: Sequence[JudgedStream]) -> float:
    """Factor c: a share of bad events is significantly above burn × budget if it exceeds burn × budget + c / sqrt(events).

    One-sided normal approximation at 99%; the gaps of one probe are not independent and count as one event.
    """
    share = float(pair.burn * slo.error_budget_ratio)
    events_per_probe = max(mean_events_per_probe(slo, use.mean_tokens) for use in uses)
    return CHANCE_Z * math.sqrt(max(0.0, share * (1 - share)) * events_per_probe)


def firing_checks(slo: Slo, uses: Sequence[JudgedStream]) -> list[FiringCheck]:
    """Checks, one per window pair and judged stream of `slo`."""
    guards = [(pair, guard(slo, pair, uses)) for pair in pairs(slo.window_s)]
    return [_check(slo, use, pair, least) for pair, least in guards for use in uses]


def _check(slo: Slo, use: JudgedStream, pair: Pair, least: int) -> FiringCheck:
    share = pair.burn * slo.error_budget_ratio
    probes = [use.rate_per_s * seconds for seconds in (pair.short_s, pair.long_s)]
    events_per_probe = mean_events_per_probe(slo, use.mean_tokens)
    min_probes = math.ceil(least / events_per_probe)  # probes that give the guard's events
    above = (
        CHANCE_Z * math.sqrt(max(0.0, float(share * (1 - share))) / probes[1]) if pair.severity == "warning" else 0.0
    )
    # More than this share of all probes; at least two, since the guard excludes a single one.
    bad_short, bad_long = (max(1, math.floor((float(share) + above) * expected) + 1) for expected in probes)
    bad_long = max(bad_long, 2)
    problem = ""
    if share >= 1:
        lowest = 100 * float(1 - 1 / pair.burn)
        problem = (
            f"burn rate {pair.burn} of a budget of {format_percent(slo.error_budget_ratio)} is {format_percent(share)} "
            f"of all events, which cannot occur; use an objective above {lowest:.4g}%"
        )
    elif probes[1] < min_probes:
        problem = (
            f"its long window of {promql(pair.long_s)} has {probes[1]:.3g} probes, and at least {min_probes} are needed so that "
            f"one bad probe is not {format_percent(share)}; use a rate of at least "
            f"{format_rate(min_probes / pair.long_s)}, a lower objective or a longer window"
        )
    elif probes[0] < 1:
        problem = (
            f"its short window of {promql(pair.short_s)} has {probes[0]:.2g} probes and is mostly empty; use a rate of at "
            f"least {format_rate(1 / pair.short_s)} or a longer window"
        )
    return FiringCheck(slo, use, pair, least, probes[0], probes[1], bad_short, bad_long, problem)


def percentile_window(slo: Slo, uses: Sequence[JudgedStream]) -> tuple[int, int] | None:
    """(window in seconds, minimum events) of the percentile alert: the shortest window with enough probes of every stream.

    None if no window up to the SLO's window has enough.
    """
    needed = percentile_events(slo)
    slowest = min(use.rate_per_s for use in uses)
    events = min_events(slo, uses)
    for window_s in PERCENTILE_WINDOWS_S:
        if slowest * window_s >= 1.2 * needed and window_s <= slo.window_s:
            return window_s, events
    return None
