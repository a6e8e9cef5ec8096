"""Knee from breach fractions alone, without the engine's page or a model, with an interval.

Near its knee K a target's share of bad events grows as a power of the rate, p(r) = p0·(r ÷ K)^s, with p0 what the objective allows.
s is some 2 for a target that gives way slowly (prompts of very different lengths) and 40 for one that falls off a cliff. Bayes over
a grid of (log K, log s, what share breaches at any rate), flat priors; events of a stage are correlated, so they count as
1 ÷ `CLUSTER` of themselves in the likelihood (a power posterior). Latencies say more than breaches: where a stage had `TAIL` of
them or more, the highest tenth is taken as Pareto (Hill's estimate), and its share beyond the threshold counts as so many events.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, log

CLUSTER = 3.0  # neighbouring requests breach together
TAIL, TENTH = 40, 0.1
TAIL_TRUST = 0.7  # an extrapolated tail counts as this share of the events it stands for
SLOPES = tuple(2.0 * 1.35**n for n in range(11))  # 2 … 40
ALWAYS = (0.0, 0.2, 0.5)  # of p0: share of breaches independent of the rate
NEVER = (
    1.5,
    2.0,
    3.0,
    5.0,
    10.0,
    20.0,
    50.0,
    90.0,
)  # times p0 at every rate: the alternative hypothesis without a knee
STEPS = 150


@dataclass(frozen=True, slots=True)
class Step:
    """A stage: requests per second, events and bad events; shares: known latencies / threshold."""

    rate_per_s: float
    events: int
    bad: int
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Interval:
    """Rates per second. reaches: mass of the posterior above the highest rate that was tried.

    never: posterior chance, at even odds before, that the share does not hang on the rate and no rate meets the objective
    """

    lower: float
    estimate: float
    upper: float
    reaches: float
    never: float


def knee(steps: Sequence[Step], allowed: float, confidence: float = 0.9) -> Interval | None:
    """Median and central interval of the posterior of the knee; None without events.

    allowed: share of events that may be bad. The prior is flat in log K from half the lowest rate to 1.6 times the highest.
    """
    known = [each for each in steps if each.events > 0]
    if not known:
        return None
    low = log(min(each.rate_per_s for each in known) / 2)
    high = log(max(each.rate_per_s for each in known) * 1.6)
    grid = [low + (high - low) * (n + 0.5) / STEPS for n in range(STEPS)]
    counted = [(log(each.rate_per_s), *_counted(each)) for each in known]
    logs = [[_likelihood(counted, at, slope, always, allowed) for slope in SLOPES for always in ALWAYS] for at in grid]
    flat = [_likelihood_flat(counted, min(0.95, times * allowed)) for times in NEVER]
    top = max(max(flat), *(max(row) for row in logs))
    mass = [sum(exp(each - top) for each in row) for row in logs]
    whole = sum(mass)
    rises, stays = whole / len(grid) / len(logs[0]), sum(exp(each - top) for each in flat) / len(flat)
    tried = log(max(each.rate_per_s for each in known))
    beyond = sum(m for at, m in zip(grid, mass, strict=True) if at > tried) / whole
    quantiles = (_quantile(grid, mass, q * whole) for q in ((1 - confidence) / 2, 0.5, (1 + confidence) / 2))
    lower, estimate, upper = (exp(each) for each in quantiles)
    return Interval(lower, estimate, upper, beyond, stays / (rises + stays))


def at_least(count: int, of: int, share: float) -> float:
    """Binomial probability of at least `count` events among `of`, each with probability `share`."""
    below, term = 0.0, (1 - share) ** of
    for k in range(count):
        below += term
        term *= (of - k) / (k + 1) * share / (1 - share)
    return max(0.0, 1.0 - below)


def _counted(step: Step) -> tuple[float, float]:
    """(events, bad events): counted, or extrapolated from the tail of the latencies."""
    events, bad = step.events / CLUSTER, step.bad / CLUSTER
    if len(step.shares) < TAIL or step.bad > 2:
        return events, bad
    beyond = pareto_beyond(step.shares) * step.events
    return events, (1 - TAIL_TRUST) * bad + TAIL_TRUST * beyond / CLUSTER


def pareto_beyond(shares: Sequence[float]) -> float:
    """Share of a distribution above 1, with a Pareto tail in its highest tenth (Hill's estimator, 1975)."""
    ordered = sorted(shares, reverse=True)
    top = ordered[: max(4, round(TENTH * len(ordered)))]
    least = top[-1]
    if least >= 1:
        return sum(each > 1 for each in ordered) / len(ordered)
    spread = sum(log(each / least) for each in top[:-1]) / (len(top) - 1) if least > 0 else 0.0
    return len(top) / len(ordered) * exp(log(least) / spread) if spread > 0 else 0.0


def _likelihood(
    steps: Sequence[tuple[float, float, float]], at: float, slope: float, always: float, allowed: float
) -> float:
    """Of binomial events, in logarithms; shares above what can be are 1."""
    total = 0.0
    for log_rate, events, bad in steps:
        x = min(1.0, max(-30.0, slope * (log_rate - at)) / 30.0) * 30.0
        share = min(0.999, allowed * (always + (1 - always) * exp(x)))
        total += bad * log(share) + (events - bad) * log(1 - share)
    return total if total > -inf else -1e300


def _likelihood_flat(steps: Sequence[tuple[float, float, float]], share: float) -> float:
    """Of the same events, if their share of bad ones is the same at every rate."""
    return sum(bad * log(share) + (events - bad) * log(1 - share) for _, events, bad in steps)


def _quantile(grid: Sequence[float], mass: Sequence[float], of: float) -> float:
    below = 0.0
    for at, m in zip(grid, mass, strict=True):
        below += m
        if below >= of:
            return at
    return grid[-1]
