"""Evidence on whether a mean is within its budget, by a sequential test with a stated error.

Gate, sweep, matrix and plan judge only by `evidence`. Evaluating it after every observation does not raise the error.

Observations are bad (1), good (0), or between. A rival with odds ratio r multiplies its evidence against a mean m by (1 − x
+ r·x) ÷ (1 − m + r·m) for an observation x: the likelihood ratio of a Bernoulli observation, and a bet on any other one. Its mean is at
most 1 for r < 1 if the mean of each observation, whatever came before, is m or more, and for r > 1 if it is m or less. So a weighted
mean of such products is an e-process: the chance that it ever reaches 1 ÷ error is at most `error` (Ville's inequality; Waudby-Smith
and Ramdas, "Estimating means of bounded random variables by betting", 2024). Wald's test is the case of one rival and zeros and ones.
It needs no approximation and no independence, but the conditional mean of every observation must be on one side of m. If bad events
cluster, an observation must therefore be the mean of a block of time much longer than such a cluster
(`features.experiments.gate`).
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Literal

Evidence = Literal["holds", "fails", "undecided"]
Rivals = tuple[tuple[float, float], ...]  # (odds as a multiple of the share's odds, weight); weights sum to 1

# Chosen by `bench/deciding.py`: without bad events, the rival that expects none decides soonest; the others cost it little.
RIVALS_BELOW: Rivals = ((0.0, 0.4), (0.2, 0.35), (0.5, 0.25))
RIVALS_ABOVE: Rivals = ((2.0, 0.3), (4.0, 0.35), (12.0, 0.2), (100.0, 0.15))
ERROR = 0.05  # largest probability that "holds" or "fails" is wrong
MIN_BAD = 2  # observations above the budget: a single one proves nothing


class Observations:
    """Observations between 0 and 1, in any order. counts: number of observations by value; may be fractional"""

    __slots__ = ("count", "counts")

    def __init__(self, values: Iterable[float] | Mapping[float, float] = ()) -> None:
        self.counts: Counter[float] = Counter(values)
        self.count: float = self.counts.total()

    def add(self, value: float) -> None:
        """Add an observation, 0 to 1."""
        self.counts[value] += 1
        self.count += 1

    def __add__(self, other: "Observations") -> "Observations":
        """The observations of both."""
        return Observations(self.counts + other.counts)

    @property
    def mean(self) -> float:
        """Mean of the observations; 0 without observations."""
        return sum(value * number for value, number in self.counts.items()) / (self.count or 1)


ALL_GOOD = Observations([0.0])


def evidence(
    observed: Observations,
    budget: float,
    *,
    surely_bad: Observations | None = None,
    holds_error: float = ERROR,
    fails_error: float = ERROR,
) -> Evidence:
    """Return "holds" if the mean is proved to be below `budget`, "fails" if above, each with its error; else "undecided".

    surely_bad: observations for "fails" if an uncertain reference decides which are bad; None: `observed`
    """
    against = observed if surely_bad is None else surely_bad
    is_repeated = sum(number for value, number in against.counts.items() if value > budget) >= MIN_BAD
    if is_repeated and log_evidence_above(against, budget) >= -math.log(fails_error):
        return "fails"
    return "holds" if log_evidence_below(observed, budget) >= -math.log(holds_error) else "undecided"


def log_evidence_below(observed: Observations, share: float) -> float:
    """ln(evidence) that the mean is below `share` (0 < share < 1). The error of that claim is exp(−result)."""
    return _evidence(observed, share, RIVALS_BELOW)


def log_evidence_above(observed: Observations, share: float) -> float:
    """ln(evidence) that the mean is above `share` (0 < share < 1)."""
    return _evidence(observed, share, RIVALS_ABOVE)


def confidence_bounds(observed: Observations, error: float) -> tuple[float, float]:
    """(lower, upper) bounds of the mean. Each is wrong with a chance of at most `error`, however often it is computed."""
    needed = -math.log(error)
    lower = _threshold_share(lambda share: log_evidence_above(observed, share) < needed) if observed.mean > 0 else 0.0
    upper = (
        _threshold_share(lambda share: log_evidence_below(observed, share) >= needed)
        if observed.mean < 1 and observed.count
        else 1.0
    )
    return lower, upper


def min_observations(
    budget: float,
    error: float,
    pattern: Observations = ALL_GOOD,
    log_evidence: Callable[[Observations, float], float] = log_evidence_below,
) -> int:
    """Smallest number of observations, distributed as in `pattern`, that proves a mean below `budget`.

    log_evidence: evidence for the claim; `log_evidence_above`: number that proves a mean above `budget`
    The mean of `pattern` must be far enough from `budget` for a proof to be possible.
    """

    def is_proven(count: int) -> bool:
        scale = count / pattern.count
        scaled = Observations({value: number * scale for value, number in pattern.counts.items()})
        return log_evidence(scaled, budget) >= -math.log(error)

    high = 1
    while not is_proven(high):
        high *= 2
    return bisect_left(range(high), True, key=is_proven)


def _evidence(observed: Observations, share: float, rivals: Rivals) -> float:
    """Logarithm of the evidence: ln Σ weight · Π (1 − x + r·x) ÷ (1 − share + r·share)."""
    values = [(value, number) for value, number in observed.counts.items() if value and number]
    logs = [
        weight - observed.count * step + sum([number * _log(value, odds) for value, number in values])
        for weight, odds, step in _terms(share, rivals)
    ]
    largest = max(logs)
    return largest + math.log(sum([math.exp(log - largest) for log in logs]))


def _log(value: float, odds: float) -> float:
    """Returns ln(1 − value + odds·value)."""
    change = (odds - 1) * value
    return math.log1p(change) if change > -1 else -math.inf


@lru_cache(maxsize=256)  # a test uses a few shares after every observation
def _terms(share: float, rivals: Rivals) -> tuple[tuple[float, float, float], ...]:
    """Returns (ln weight, r, ln(1 − share + r·share)) of each rival."""
    return tuple((math.log(weight), odds, math.log1p((odds - 1) * share)) for odds, weight in rivals)


def _threshold_share(holds: Callable[[float], bool]) -> float:
    """Share above which `holds` is true, to 1e-6. Bisects on a log scale, because budgets are small."""
    low, high = -14.0, 14.0  # logits
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if holds(1 / (1 + math.exp(-middle))) else (middle, high)
    return 1 / (1 + math.exp(-high))
