"""Sequential test of a share against a budget. It may be evaluated after every observation without raising the error rate.

Observations are bad (1) or good (0), or anything between. A rival claims odds of `r` times those of a share m; its likelihood
ratio against m after `count` observations that sum to `bad` is r^bad ÷ (1 − m + r·m)^count. By convexity its mean is at most 1
for r < 1 if the mean of each observation, whatever came before, is m or more, and for r > 1 if it is m or less. So a weighted
mean of such ratios is an e-process: the chance that it ever reaches 1 ÷ error is at most `error` (Ville's inequality; Waudby-Smith
and Ramdas, "Estimating means of bounded random variables by betting", 2024; Howard, Ramdas, McAuliffe, Sekhon, "Time-uniform,
nonparametric, nonasymptotic confidence sequences", 2021, the sub-Bernoulli mixture). Wald's test is the case of one rival.
It needs no approximation and no independence, but the conditional mean of every observation must be on one side of m. A share that
is above m only in the long run, with hours between outages, cannot be shown by minutes of observations.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

Rivals = tuple[tuple[float, float], ...]  # (odds as a multiple of those of the share, weight); weights sum to 1

# Chosen by `bench/deciding.py`: the rival without bad events decides soonest if there are none; the others cost it little.
RIVALS_BELOW: Rivals = ((0.0, 0.4), (0.2, 0.35), (0.5, 0.25))
RIVALS_ABOVE: Rivals = ((2.0, 0.3), (4.0, 0.35), (12.0, 0.2), (100.0, 0.15))


@dataclass(frozen=True, slots=True)
class Observations:
    """Number of observations and their sum. For zeros and ones the sum is the number of bad ones."""

    count: int = 0
    bad: float = 0.0

    def plus(self, value: float) -> "Observations":
        """Returns these observations and one more, 0 to 1."""
        return Observations(self.count + 1, self.bad + value)


def log_evidence_below(observed: Observations, share: float) -> float:
    """Returns ln(evidence) that the mean is below `share` (0 < share < 1). The error of that claim is exp(−result)."""
    return _evidence(observed, share, RIVALS_BELOW)


def log_evidence_above(observed: Observations, share: float) -> float:
    """Returns ln(evidence) that the mean is above `share` (0 < share < 1)."""
    return _evidence(observed, share, RIVALS_ABOVE)


def confidence_bounds(observed: Observations, error: float) -> tuple[float, float]:
    """Returns an interval for the mean. Each end is wrong with a chance of at most `error`, however often it is evaluated."""
    needed = -math.log(error)
    lower = _threshold_share(lambda share: log_evidence_above(observed, share) < needed) if observed.bad > 0 else 0.0
    upper = (
        _threshold_share(lambda share: log_evidence_below(observed, share) >= needed)
        if observed.bad < observed.count
        else 1.0
    )
    return lower, upper


def min_observations(budget: float, error: float, good: float = 0.0) -> int:
    """Returns the fewest observations, all of value `good` (less than `budget`), that prove a mean below `budget`."""

    def is_proven(count: int) -> bool:
        return log_evidence_below(Observations(count, good * count), budget) >= -math.log(error)

    high = 1
    while not is_proven(high):
        high *= 2
    return bisect_left(range(high), True, key=is_proven)


def _evidence(observed: Observations, share: float, rivals: Rivals) -> float:
    """Returns ln Σ weight · r^bad ÷ (1 − share + r·share)^count."""
    count, bad = observed.count, observed.bad
    terms = _terms(share, rivals)
    if not bad:
        logs = [weight - count * step for weight, _, step in terms]
    else:
        logs = [weight + bad * odds - count * step for weight, odds, step in terms]
    largest = max(logs)
    return largest + math.log(sum([math.exp(log - largest) for log in logs]))


@lru_cache(maxsize=256)  # a test uses the same few shares after every observation
def _terms(share: float, rivals: Rivals) -> tuple[tuple[float, float, float], ...]:
    """Returns (ln weight, ln r or −∞, ln(1 − share + r·share)) of each rival."""
    return tuple(
        (math.log(weight), math.log(odds) if odds else -math.inf, math.log1p((odds - 1) * share))
        for odds, weight in rivals
    )


def _threshold_share(holds: Callable[[float], bool]) -> float:
    """Returns the smallest share from which on `holds` is true, to 1e-6. Bisects on a log scale, because budgets are small."""
    low, high = -14.0, 14.0  # logits
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(1 / (1 + math.exp(-middle))) else (middle, high)
    return 1 / (1 + math.exp(-high))
