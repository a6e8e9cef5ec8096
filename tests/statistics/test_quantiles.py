"""Confidence intervals of quantiles."""

import math
from random import Random

import numpy as np
import pytest

from prober.statistics.quantiles import quantile_bounds, quantiles
from tests.known import known


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
def test_the_interval_has_95_percent_coverage(q: float) -> None:
    """Coverage over 600 samples of 1,500 exponentials is at least 93% and at most 99%."""
    rng, truth, covered = np.random.default_rng(5), -np.log(1 - q), 0
    for _ in range(600):
        (found,) = quantiles(list(rng.exponential(size=1500)), (q,))
        covered += bool(found.lower <= truth <= known(found.upper))
    assert 0.93 <= covered / 600 <= 0.99


def test_few_samples_have_no_upper_bound() -> None:
    """p99 of 50 samples is the largest one, without upper bound, and is marked as not enough samples."""
    (found,) = quantiles([float(i) for i in range(50)], (0.99,))
    assert (found.estimate, found.upper, found.has_enough_samples, found.count) == (49.0, None, False, 50)
    assert quantiles([]) == []


def test_a_quantile_below_all_censored_samples_is_that_of_any_completion_and_others_are_bounds() -> None:
    """Samples of which only a lower bound is known get random values above it; rank by rank, counted here."""
    rng = Random(5)
    qs = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
    seen = {"known": 0, "bound": 0}
    for _ in range(200):
        samples = [rng.choice((1.0, 2.0, 3.0, rng.uniform(0, 10))) for _ in range(rng.randint(0, 30))]
        at_least = [rng.choice((2.0, 3.0, rng.uniform(0, 12))) for _ in range(rng.randint(1, 5))]
        known = {quantile.q: quantile for quantile in quantiles(samples, qs, at_least)}
        bounds = {quantile.q: quantile for quantile in quantile_bounds(samples, qs, at_least)}
        assert set(known) | set(bounds) == set(qs)
        assert not set(known) & set(bounds)
        for _ in range(5):
            true = sorted((*samples, *(bound + rng.choice((0.0, rng.expovariate(0.3))) for bound in at_least)))
            for q in qs:
                value = true[max(1, math.ceil(q * len(true))) - 1]
                assert known[q].estimate == value if q in known else bounds[q].estimate <= value
        seen["known"] += len(known)
        seen["bound"] += len(bounds)
    assert min(seen.values()) > 100
    assert quantiles(samples, qs, []) == quantiles(samples, qs)
    assert quantile_bounds(samples, qs, []) == []
