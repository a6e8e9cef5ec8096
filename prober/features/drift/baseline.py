"""Baseline of a signal in its usual state: learned once from blocks of samples (`fitting`), then fixed.

A baseline has the expected log of the signal as a function of a harmless factor (the engine's load if known, or else the half hour of
the week), the correlation of neighbouring residuals, and the sorted whitened residuals, among which new ones are ranked. Ranks make
the detector independent of the shape of the distribution; the log makes a slowdown a shift. Each fifth of the factor has its own
reference, as the shape may depend on it: with a common one, bets would gain at busy hours without any change.
"""

import math
from array import array
from bisect import bisect_right
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import sqrt
from statistics import NormalDist
from typing import Literal

from prober.features.drift.blocks import DAY_SLOTS, SLOT_S, WEEK_SLOTS, week_slots

QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99)
FLOOR_SHARE = 0.2  # of the samples: so many meet no queue, unless the service is saturated
# A weekend somewhere on Earth: from Friday 10:00 UTC (Saturday at UTC+14) to Monday 12:00 UTC (Sunday ends at UTC−12).
WEEKEND_BEGIN, WEEKEND_END = 4 * DAY_SLOTS + 20, 24
EARLIER_SLOTS = 2  # by which a day may begin or end earlier or later than the baseline's days: an hour

Factor = Literal["none", "load", "hour"]


@dataclass(frozen=True, slots=True)
class Baseline:
    """Model of the engine's log latencies by load or by hour, fitted once and then fixed. A residual is a log minus its expected value;
    whitening removes the part that the previous residual predicts; fifths are five ranges of the load or hour. Logs are natural logs of
    seconds, `unix_s` is in seconds, loads are in the samples' unit.

    centre, scale: mean and spread of the load; the argument of the polynomials is (load − centre) / scale
    coefficients: of the expected log: a polynomial in the load, or a single level if the factor is `none`
    variance: part of a whitened residual's variance due to the model's error: a polynomial in the load, or a bound
    levels, level_errors: expected log in the middle of each half hour of the week, and the standard error of a whitened residual due to
    its error: NaN if not seen, infinite if seen on only one workday (perhaps a holiday). Empty unless the factor is `hour`
    sd: standard deviation of the residuals
    correlation: correlation of neighbouring residuals
    wander: spread of the level beyond what the spread of its samples explains
    inflations: per fifth, variance of a block's mean score ÷ that of independent scores: correlation over minutes
    quietest, busiest: lowest (without the lowest 2%) and highest learned smoothed load; infinite without loads
    slowest: slowest expected log within the loads or hours of the samples
    cuts: limits of the load or expected log between fifths; empty if one reference serves all
    quantiles: per fifth, the QUANTILES of the residuals
    references: per fifth, sorted whitened residuals
    floors: per fifth, evenly spaced quantiles of the residuals, not whitened; empty for an hour, whose queues differ from day to day
    floor_inflations: per fifth, variance of the number of a block's samples in the fastest fifth ÷ that of independent samples
    """

    factor: Factor
    centre: float = 0.0
    scale: float = 1.0
    coefficients: tuple[float, ...] = ()
    variance: tuple[float, ...] = ()
    levels: "array[float]" = field(default_factory=lambda: array("f"))
    level_errors: "array[float]" = field(default_factory=lambda: array("f"))
    sd: float = 0.0
    correlation: float = 0.0
    wander: float = 0.0
    inflations: tuple[float, ...] = ()
    quietest: float = -math.inf
    busiest: float = math.inf
    slowest: float = 0.0
    cuts: tuple[float, ...] = ()
    quantiles: tuple["array[float]", ...] = ()
    references: tuple["array[float]", ...] = ()
    floors: tuple["array[float]", ...] = ()
    floor_inflations: tuple[float, ...] = ()

    def expected(self, unix_s: float, load: float) -> tuple[float, float]:
        """(expected log, standard error of a whitened residual due to the model's error).

        NaN at an hour that was not seen; an infinite error if it was seen on only one workday. Beyond the learned loads the curve is
        flat, because a polynomial would deviate there by factors of a thousand.

        The model's variance is sd²·(1 − φ²)·x'inv(X'X)x: correlation φ multiplies that of the coefficients by
        (1 + φ)/(1 − φ), and whitening multiplies a constant error by 1 − φ.
        """
        if self.factor == "load":
            learnt = min(max(load, self.quietest), self.busiest)
            u = (learnt - self.centre) / self.scale
            b0, b1, b2, b3 = self.coefficients
            g0, g1, g2, g3, g4, g5, g6 = self.variance
            log = b0 + u * (b1 + u * (b2 + u * b3))
            variance = g0 + u * (g1 + u * (g2 + u * (g3 + u * (g4 + u * (g5 + u * g6)))))
            return log, sqrt(variance) if variance > 0 else 0.0
        if self.factor == "hour":
            at = week_slots(unix_s - SLOT_S / 2)
            slot = int(at)
            share, levels = at - slot, self.levels
            own = slot if share < 0.5 else slot + 1 - WEEK_SLOTS  # negative indices count from the end of the week
            first, second = levels[slot], levels[slot + 1 - WEEK_SLOTS]
            log, error = first + share * (second - first), self.level_errors[own]
            if log != log:
                log = levels[own]
            # A day may begin or end up to an hour earlier or later; next to an unseen hour, a half hour may be as slow as any.
            first, second = levels[slot - EARLIER_SLOTS], levels[slot - EARLIER_SLOTS + 1]
            earlier = first + share * (second - first)
            first, second = levels[slot + EARLIER_SLOTS - WEEK_SLOTS], levels[slot + EARLIER_SLOTS + 1 - WEEK_SLOTS]
            later = first + share * (second - first)
            slower = max(earlier, later) if earlier + later == earlier + later else self.slowest  # not if one is NaN
            return log, error + max(0.0, (slower - log) * (1 - self.correlation) - 2 * error)
        return self.coefficients[0], sqrt(self.variance[0])

    def fifth(self, expected: float, load: float) -> int:
        """Index of the fifth with this expected log and load."""
        return bisect_right(self.cuts, load if self.factor == "load" else expected)

    def whitened(self, residual: float, before: float | None) -> float:
        """The residual without the part that the previous one predicts; without a previous one, scaled to the same spread."""
        phi = self.correlation
        return residual * math.sqrt(1 - phi * phi) if before is None else residual - phi * before

    def with_visit(self, slot: int, log: float, count: float) -> "Baseline":
        """Extend the baseline by an unknown half hour of the week, with `count` samples of mean `log`.

        A half hour of a weekend is known after its first visit, one of the workdays after visits on two days.
        """
        levels, errors = self.levels[:], self.level_errors[:]
        for same in alike(slot):
            if errors[same] == math.inf:
                levels[same], errors[same] = max(log, levels[same]), self.level_error(count)
            elif math.isnan(levels[same]):
                levels[same], errors[same] = log, self.level_error(count) if is_weekend(slot) else math.inf
        return replace(self, levels=levels, level_errors=errors)

    def level_error(self, count: float) -> float:
        """Standard error of a whitened residual if the expected log is a mean of `count` samples."""
        return self.sd * math.sqrt((1 - self.correlation**2) / count)


def is_weekend(slot: int) -> bool:
    """True if a half hour of the week, in UTC, is on a weekend in some time zone."""
    return slot >= WEEKEND_BEGIN or slot < WEEKEND_END


@lru_cache(maxsize=WEEK_SLOTS)
def alike(slot: int) -> tuple[int, ...]:
    """Half hours of the week assumed to have the same level: on workdays those at the same time of day; else only itself."""
    if is_weekend(slot):
        return (slot,)
    return tuple(same for same in range(slot % DAY_SLOTS, WEEK_SLOTS, DAY_SLOTS) if not is_weekend(same))


@lru_cache(maxsize=32)
def scores(count: int) -> "array[float]":
    """Normal score for i smaller reference values: Φ⁻¹((i + ½)/(count + 1)), i = 0..count. Shared by all signals."""
    inverse = NormalDist().inv_cdf
    return array("f", (inverse((i + 0.5) / (count + 1)) for i in range(count + 1)))
