"""Checks by the configured probe rate that each burn alert can fire, and that one bad probe cannot fire it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from prober.measure.objective import (
    PAIRS,
    JudgedStream,
    Pair,
    Slo,
    format_percent,
    format_rate,
    max_events_per_probe,
    mean_events_per_probe,
    promql,
)

# `increase()` extrapolates to the ends of its window and may return a few more events than occurred.
EXTRAPOLATION_FACTOR = 1.1
CHANCE_Z = (
    2.33  # 99%, one-sided: standard errors by which a ticket's share exceeds its burn rate, which is near the budget
)


def needed_events(pair: Pair) -> float:
    """Number of events that the long window needs, as a multiple of the events whose budget is one bad probe.

    With fewer events, a single bad probe could exceed the share that fires.
    """
    return EXTRAPOLATION_FACTOR / float(pair.burn)


@dataclass(frozen=True, slots=True)
class FiringCheck:
    """Result of the check of one burn alert, for one pair of windows and one judged stream.

    probes_short, probes_long: expected probes in each window.
    bad_short, bad_long: bad probes in each window at which the alert fires.
    problem: why the alert cannot fire, with the remedy; empty if it can.
    """

    slo: Slo
    use: JudgedStream
    pair: Pair
    probes_short: float
    probes_long: float
    bad_short: int
    bad_long: int
    problem: str

    @property
    def place(self) -> str:
        """Configuration path to change: the SLO's objective if no probe rate solves the problem, else the SLO."""
        return f"slos.{self.slo.name}" + (".objective" if self.pair.burn * self.slo.error_budget_ratio >= 1 else "")


def firing_checks(slo: Slo, uses: Sequence[JudgedStream]) -> list[FiringCheck]:
    """Checks, one per window pair and judged stream of `slo`."""
    return [_check(slo, use, pair) for pair in PAIRS for use in uses]


def _check(slo: Slo, use: JudgedStream, pair: Pair) -> FiringCheck:
    budget = float(slo.error_budget_ratio)
    share = pair.burn * slo.error_budget_ratio
    probes = [use.rate_per_s * seconds for seconds in (pair.short_s, pair.long_s)]
    events = needed_events(pair) * max_events_per_probe(slo, use.max_tokens) / budget
    min_probes = math.floor(events / mean_events_per_probe(slo, use.mean_tokens)) + 1
    above = CHANCE_Z * math.sqrt(float(share) / probes[1]) if pair.severity == "warning" else 0.0
    # More than this share of all probes; at least two, as the needed events exclude a single one.
    bad_short, bad_long = (
        max(least, math.floor((float(share) + more) * expected) + 1)
        for expected, more, least in zip(probes, (0.0, above), (1, 2), strict=True)
    )
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
            f"one bad probe is not {format_percent(share)}; use a rate of at least {format_rate(min_probes / pair.long_s)} or a "
            "lower objective"
        )
    elif probes[0] < 1:
        problem = (
            f"its short window of {promql(pair.short_s)} has {probes[0]:.2g} probes and is mostly empty; use a rate of at "
            f"least {format_rate(1 / pair.short_s)}"
        )
    return FiringCheck(slo, use, pair, probes[0], probes[1], bad_short, bad_long, problem)
