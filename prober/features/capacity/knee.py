"""Estimates the knee, with an interval, from fractions of bad events alone, without the engine's page or a model.

Near the knee K of a target the share of bad events grows as a power of the rate, p(r) = p0·(r ÷ K)^s, where p0 is the allowed
share; s is about 2 for a target that degrades slowly (prompts of very different lengths) and 40 for a sharp one. The posterior is
computed on a grid of (log K, log s, share of bad events at any rate) with flat priors. Events of a stage are correlated, so in the
likelihood they count as 1 ÷ EVENTS_PER_CLUSTER each (a power posterior). Latencies say more than breaches: with
MIN_TAIL_SAMPLES or more in a stage, the highest tenth is taken as Pareto (Hill's estimator), and its share beyond the threshold
counts as events.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

EVENTS_PER_CLUSTER = 3.0  # neighbouring requests breach together
MIN_TAIL_SAMPLES, TAIL_SHARE = 40, 0.1
TAIL_TRUST = 0.7  # weight of an extrapolated tail's events
SLOPES = 2.0 * 1.35 ** np.arange(11)  # 2 to 40
CONSTANT_SHARES = np.array((0.0, 0.2, 0.5))  # of p0: share of bad events independent of the rate
# Multiples of p0 at every rate: the alternative, without a knee.
FLAT_MULTIPLES = np.array((1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 90.0))
GRID_POINTS = 150


@dataclass(frozen=True, slots=True)
class Step:
    """A stage: requests per second, events, bad events, and known latencies ÷ threshold."""

    rate_per_s: float
    events: int
    bad: int
    latency_ratios: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Interval:
    """Interval of the knee, in requests per second.

    flat: posterior probability, with even prior odds, that the share is independent of the rate and no rate meets the objective
    """

    lower: float
    estimate: float
    upper: float
    flat: float


def knee(steps: Sequence[Step], allowed: float, confidence: float = 0.9) -> Interval | None:
    """Median and central interval of the knee's posterior; None without events.

    allowed: share of events that may be bad. The prior is flat in log K from half the lowest rate to 1.6 times the highest.
    """
    measured = [step for step in steps if step.events > 0]
    if not measured:
        return None
    log_rates = np.log([step.rate_per_s for step in measured])
    events, bad = np.array([_effective_events(step) for step in measured]).T
    low, high = log_rates.min() - log(2), log_rates.max() + log(1.6)
    grid = low + (high - low) * (np.arange(GRID_POINTS) + 0.5) / GRID_POINTS
    # Axes: knee, slope, constant share, stage.
    exponents = np.clip(SLOPES[:, None, None] * (log_rates - grid[:, None, None, None]), -30.0, 30.0)
    constant = CONSTANT_SHARES[:, None]
    shares = np.minimum(0.999, allowed * (constant + (1 - constant) * np.exp(exponents)))
    rising = _log_likelihood(events, bad, shares)
    flat = _log_likelihood(events, bad, np.minimum(0.95, FLAT_MULTIPLES * allowed)[:, None])
    largest = max(rising.max(), flat.max())
    mass = np.exp(rising - largest).sum(axis=(1, 2))
    rising_evidence, flat_evidence = mass.sum() / rising.size, np.exp(flat - largest).mean()
    cumulated = np.cumsum(mass) / mass.sum()
    places = np.searchsorted(cumulated, ((1 - confidence) / 2, 0.5, (1 + confidence) / 2))
    lower, estimate, upper = np.exp(grid[np.minimum(places, GRID_POINTS - 1)]).tolist()
    return Interval(lower, estimate, upper, float(flat_evidence / (rising_evidence + flat_evidence)))


def pareto_share_above_1(ratios: Sequence[float]) -> float:
    """Share of the ratios above 1, with a Pareto tail fitted to the highest tenth (Hill's estimator, 1975)."""
    ordered = sorted(ratios, reverse=True)
    tail = ordered[: max(4, round(TAIL_SHARE * len(ordered)))]
    lowest = tail[-1]
    if lowest >= 1:
        return sum(ratio > 1 for ratio in ordered) / len(ordered)
    mean_log = sum(log(ratio / lowest) for ratio in tail[:-1]) / (len(tail) - 1) if lowest > 0 else 0.0
    return len(tail) / len(ordered) * exp(log(lowest) / mean_log) if mean_log > 0 else 0.0


def _effective_events(step: Step) -> tuple[float, float]:
    """(events, bad events) of a stage, counted or extrapolated from the latencies' tail."""
    events, bad = step.events / EVENTS_PER_CLUSTER, step.bad / EVENTS_PER_CLUSTER
    if len(step.latency_ratios) < MIN_TAIL_SAMPLES or step.bad > 2:
        return events, bad
    extrapolated = pareto_share_above_1(step.latency_ratios) * step.events / EVENTS_PER_CLUSTER
    return events, (1 - TAIL_TRUST) * bad + TAIL_TRUST * extrapolated


def _log_likelihood(events: Array, bad: Array, shares: Array) -> Array:
    """Binomial log likelihood, summed over the last axis (stages). shares: shares of bad events, between 0 and 1"""
    likelihood: Array = (bad * np.log(shares) + (events - bad) * np.log1p(-shares)).sum(axis=-1)
    return likelihood
