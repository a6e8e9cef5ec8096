"""Tail of the binomial distribution, and bounds of its share."""

import math
from collections.abc import Callable


def probability_of_at_least(count: int, trials: int, share: float) -> float:
    """Returns the probability of `count` events or more in `trials`, each with probability `share` (0 <= share < 1)."""
    if count <= 0 or count > trials or share <= 0:
        return float(count <= 0)
    fewer, log_term, log_odds = 0.0, trials * math.log1p(-share), math.log(share) - math.log1p(-share)
    for events in range(count):
        fewer += math.exp(log_term)
        log_term += math.log((trials - events) / (events + 1)) + log_odds
    return max(0.0, 1.0 - fewer)


def share_bounds(count: int, trials: int, error: float) -> tuple[float, float]:
    """Returns the lower and the upper bound of the share, each wrong with probability `error` at most (Clopper, Pearson, 1934).

    trials: above 0
    """
    lower = _largest_share(lambda share: probability_of_at_least(count, trials, share) <= error) if count else 0.0
    fewest = count + 1
    upper = _largest_share(lambda share: 1 - probability_of_at_least(fewest, trials, share) >= error)
    return lower, upper


def _largest_share(holds: Callable[[float], bool]) -> float:
    """The largest share for which a condition holds that holds for all smaller ones, to one in 10⁶."""
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
