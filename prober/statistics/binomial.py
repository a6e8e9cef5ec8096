"""Tail of the binomial distribution."""


def probability_of_at_least(count: int, trials: int, share: float) -> float:
    """Returns the probability of `count` events or more in `trials`, each with probability `share` (0 <= share < 1)."""
    fewer, term = 0.0, (1 - share) ** trials
    for events in range(count):
        fewer += term
        term *= (trials - events) / (events + 1) * share / (1 - share)
    return max(0.0, 1.0 - fewer)
