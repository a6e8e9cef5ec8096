"""Quantiles say how sure they are, and trust is lost for cause."""

import numpy as np
import pytest

from prober.probing.trust import Trust
from prober.statistics.quantiles import quantiles

S = 10**9


@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
def test_the_interval_holds_the_truth_95_times_in_100(q: float) -> None:
    """Coverage over 600 samples of 1,500 exponentials is at least 93%, and the interval is not everything."""
    rng, truth, covered = np.random.default_rng(5), -np.log(1 - q), 0
    for _ in range(600):
        (found,) = quantiles(list(rng.exponential(size=1500)), (q,))
        assert found.lower is not None
        assert found.upper is not None
        covered += bool(found.lower <= truth <= found.upper)
    assert 0.93 <= covered / 600 <= 0.99


def test_few_samples_have_no_upper_bound_and_are_not_enough() -> None:
    """p99 of 50 samples is the worst one: no upper bound, and marked."""
    (found,) = quantiles([float(i) for i in range(50)], (0.99,))
    assert (found.estimate, found.upper, found.enough, found.count) == (49.0, None, False, 50)
    assert quantiles([]) == []


def test_trust_is_lost_for_late_probes_a_late_loop_and_missed_times() -> None:
    """Each of the three takes trust away, and five minutes without them give it back."""
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
    """One invalid probe in a hundred is within bounds."""
    trust = Trust(0.010)
    for i in range(100):
        trust.probe(S, invalid=i == 0)
    assert trust.trusted(S)
