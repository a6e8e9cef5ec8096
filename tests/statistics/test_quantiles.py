"""Confidence intervals of quantiles, and the trust in the prober's own measurements."""

import numpy as np
import pytest

from prober.probing.trust import Trust
from prober.statistics.quantiles import quantiles

S = 10**9


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
def test_the_interval_has_95_percent_coverage(q: float) -> None:
    """Coverage over 600 samples of 1,500 exponentials is at least 93% and at most 99%."""
    rng, truth, covered = np.random.default_rng(5), -np.log(1 - q), 0
    for _ in range(600):
        (found,) = quantiles(list(rng.exponential(size=1500)), (q,))
        assert found.lower is not None
        assert found.upper is not None
        covered += bool(found.lower <= truth <= found.upper)
    assert 0.93 <= covered / 600 <= 0.99


def test_few_samples_have_no_upper_bound() -> None:
    """p99 of 50 samples is the largest one, without upper bound, and is marked as not enough samples."""
    (found,) = quantiles([float(i) for i in range(50)], (0.99,))
    assert (found.estimate, found.upper, found.has_enough_samples, found.count) == (49.0, None, False, 50)
    assert quantiles([]) == []


def test_invalid_probes_loop_lag_and_missed_due_times_remove_trust() -> None:
    """Each of the three removes trust; five minutes without them restore it."""
    for spoil in (
        lambda trust: [trust.probe(S, invalid=i < 2) for i in range(100)],
        lambda trust: [trust.lag(S, 0.02 if i < 2 else 0.0) for i in range(100)],
        lambda trust: trust.missed(S),
    ):
        trust = Trust(0.010)
        assert trust.trusted(0)
        spoil(trust)
        assert not trust.trusted(2 * S)
        assert trust.trusted(320 * S)


def test_one_percent_is_tolerated() -> None:
    """One invalid probe in a hundred does not remove trust."""
    trust = Trust(0.010)
    for i in range(100):
        trust.probe(S, invalid=i == 0)
    assert trust.trusted(S)
