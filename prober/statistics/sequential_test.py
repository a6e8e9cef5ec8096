"""Is a share below its budget, or above it? To be asked after every observation, at an error that looking often does not raise.

Observations are bad (1) or good (0), or anything between. A rival claims odds of `r` times those of a share m; its likelihood
ratio against m after `count` observations that sum to `bad` is r^bad ÷ (1 − m + r·m)^count. By convexity its mean is at most 1
for r < 1 if the mean of each observation, whatever came before, is m or more, and for r > 1 if it is m or less. So a weighted
mean of such ratios is an e-process: the chance that it ever reaches 1 ÷ error is at most `error` (Ville's inequality; Waudby-Smith
and Ramdas, "Estimating means of bounded random variables by betting", 2024; Howard, Ramdas, McAuliffe, Sekhon, "Time-uniform,
nonparametric, nonasymptotic confidence sequences", 2021, the sub-Bernoulli mixture). Wald's test is the case of one rival.
No approximation, no independence: but what each observation has to expect must be on one side of m throughout. A share that is
above m only in the long run, with hours of peace between its outages, is not what minutes of observations can show.
"""

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

Rivals = tuple[tuple[float, float], ...]  # odds as a multiple of the share's own, and weights that sum to 1

# Chosen by `bench/deciding.py`: a rival of no bad events at all decides soonest where there are none, the others cost it little.
FEWER: Rivals = ((0.0, 0.4), (0.2, 0.35), (0.5, 0.25))
MORE: Rivals = ((2.0, 0.3), (4.0, 0.35), (12.0, 0.2), (100.0, 0.15))


@dataclass(frozen=True, slots=True)
class Observed:
    """How many observations, and their sum: of zeros and ones the number of bad ones."""

    count: int = 0
    bad: float = 0.0

    def plus(self, value: float) -> "Observed":
        """With one more, from 0 to 1."""
        return Observed(self.count + 1, self.bad + value)


def below(observed: Observed, share: float) -> float:
    """ln of the evidence that the mean is below `share` (0 to 1, both excluded): the error of saying so is exp(−it)."""
    return _evidence(observed, share, FEWER)


def above(observed: Observed, share: float) -> float:
    """ln of the evidence that the mean is above `share`."""
    return _evidence(observed, share, MORE)


def bounds(observed: Observed, error: float) -> tuple[float, float]:
    """An interval for the mean, each end of which is wrong with a chance of at most `error` however often it is looked at."""
    needed = -math.log(error)
    lower = _where(lambda share: above(observed, share) < needed) if observed.bad > 0 else 0.0
    upper = _where(lambda share: below(observed, share) >= needed) if observed.bad < observed.count else 1.0
    return lower, upper


def least(budget: float, error: float, good: float = 0.0) -> int:
    """The fewest observations, all of the value `good` (less than `budget`), that show a mean below `budget`."""

    def shown(count: int) -> bool:
        return below(Observed(count, good * count), budget) >= -math.log(error)

    high = 1
    while not shown(high):
        high *= 2
    return bisect_left(range(high), True, key=shown)


def _evidence(observed: Observed, share: float, rivals: Rivals) -> float:
    """ln Σ weight · r^bad ÷ (1 − share + r·share)^count."""
    count, bad = observed.count, observed.bad
    terms = _terms(share, rivals)
    if not bad:
        logs = [weight - count * step for weight, _, step in terms]
    else:
        logs = [weight + bad * odds - count * step for weight, odds, step in terms]
    most = max(logs)
    return most + math.log(sum([math.exp(each - most) for each in logs]))


@lru_cache(maxsize=256)  # a test asks for the same few shares after every observation
def _terms(share: float, rivals: Rivals) -> tuple[tuple[float, float, float], ...]:
    """(ln weight, ln r or −∞, ln(1 − share + r·share)) of each rival."""
    return tuple(
        (math.log(weight), math.log(odds) if odds else -math.inf, math.log1p((odds - 1) * share))
        for odds, weight in rivals
    )


def _where(true: Callable[[float], bool]) -> float:
    """The least share from which on `true` holds, to a millionth: on a log scale, as budgets are small."""
    low, high = -14.0, 14.0  # logits
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if true(1 / (1 + math.exp(-middle))) else (middle, high)
    return 1 / (1 + math.exp(-high))
