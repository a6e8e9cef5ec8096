"""Proof that an alert can fire, and that one bad probe cannot fire it, from the rate that is configured."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from prober.measure.burn_rate_windows import Pair, pairs, promql
from prober.measure.objective import JudgedStream, Slo, format_percent, format_rate
from prober.measure.slo_events import max_events_per_probe, mean_events_per_probe

# `increase()` extrapolates to the ends of its window, so that it may tell some more events than there were.
EXTRAPOLATION = Decimal("1.1")
PERCENTILE_WINDOWS_S = tuple(3_600 * hours for hours in (1, 2, 4, 6, 12, 24, 48, 72, 168, 336, 720))
PERCENTILE_LEAST = 1_000
SILENCE_PROBES = 10  # so many due times without an event are no accident of a random schedule: e^-10
SILENCE_LEAST_S = 600


@dataclass(frozen=True, slots=True)
class Proof:
    """Of one pair for one use. probes_*: expected in each window; bad_*: bad probes that fire it; problem: why it cannot fire."""

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
        """What of the configuration the problem is told of: the objective, where no rate would do."""
        return f"slos.{self.slo.name}" + (".objective" if self.pair.burn * self.slo.error_budget_ratio >= 1 else "")


def guard(slo: Slo, pair: Pair, uses: Sequence[JudgedStream]) -> int:
    """Events that the long window must hold, so that one bad probe alone cannot be a share above burn × budget."""
    most = max(max_events_per_probe(slo, use.max_tokens) for use in uses)
    return math.floor(EXTRAPOLATION * most / (pair.burn * slo.error_budget_ratio)) + 1


def proofs(slo: Slo, uses: Sequence[JudgedStream]) -> list[Proof]:
    """Every pair of `slo` for every use of it."""
    guards = [(pair, guard(slo, pair, uses)) for pair in pairs(slo.window_s)]
    return [_proof(slo, use, pair, least) for pair, least in guards for use in uses]


def _proof(slo: Slo, use: JudgedStream, pair: Pair, least: int) -> Proof:
    share = pair.burn * slo.error_budget_ratio
    probes = [use.rate_per_s * seconds for seconds in (pair.short_s, pair.long_s)]
    each = mean_events_per_probe(slo, use.mean_tokens)
    must = math.ceil(least / each)  # probes that hold the guard's events
    # More than this share of all probes bad; and of the fewest probes that pass the guard, so never one.
    bad_short, bad_long = (max(1, math.floor(float(share) * expected) + 1) for expected in probes)
    bad_long = max(bad_long, 2)
    problem = ""
    if share >= 1:
        lowest = 1 - 1 / pair.burn
        problem = (
            f"burn rate {pair.burn} of a budget of {format_percent(slo.error_budget_ratio)} is {format_percent(share)} of all "
            f"events, which no outage reaches; use an objective above {format_percent(lowest)}"
        )
    elif probes[1] < must:
        problem = (
            f"its {promql(pair.long_s)} hold {probes[1]:.3g} probes, and at least {must} are needed so that one bad probe is "
            f"not {format_percent(share)}; use a rate of at least {format_rate(must / pair.long_s)}, a lower objective or a "
            "longer window"
        )
    elif probes[0] < 1:
        problem = (
            f"its short window of {promql(pair.short_s)} holds {probes[0]:.2g} probes and is mostly empty; use a rate of at "
            f"least {format_rate(1 / pair.short_s)} or a longer window"
        )
    return Proof(slo, use, pair, least, probes[0], probes[1], bad_short, bad_long, problem)


def percentile_events(slo: Slo) -> int:
    """Events below which a percentile is too uncertain to judge: the larger of 1,000 and 10 (above p99: 100) a budget's share.

    So 1,000 for p99 and 100,000 for p99.9, as for any quantile shown.
    """
    return max(PERCENTILE_LEAST, math.ceil((10 if slo.objective <= Decimal("0.99") else 100) / slo.error_budget_ratio))


def judging_events(slo: Slo, uses: Sequence[JudgedStream]) -> int:
    """The same, where the gaps of one probe count as one: they are not independent."""
    return math.ceil(percentile_events(slo) * min(mean_events_per_probe(slo, use.mean_tokens) for use in uses))


def percentile_window(slo: Slo, uses: Sequence[JudgedStream]) -> tuple[int, int] | None:
    """(seconds, events that must be in them) of the percentile alert: the shortest window that holds enough probes of every use.

    None if no window up to the SLO's own is enough.
    """
    needed = percentile_events(slo)
    slowest = min(use.rate_per_s for use in uses)
    events = judging_events(slo, uses)
    for window_s in PERCENTILE_WINDOWS_S:
        if slowest * window_s >= 1.2 * needed and window_s <= slo.window_s:
            return window_s, events
    return None


def silence_s(uses: Sequence[JudgedStream]) -> int:
    """Seconds without an event after which an SLO has no data; whole minutes."""
    slowest = min(use.rate_per_s for use in uses)
    return max(SILENCE_LEAST_S, 60 * math.ceil(SILENCE_PROBES / slowest / 60))
