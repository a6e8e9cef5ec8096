"""Confidence intervals of clustered samples."""

import math
from collections.abc import Callable, Sequence
from itertools import chain
from random import Random
from statistics import NormalDist

import pytest

from prober.statistics.quantiles import Quantile, clustered_quantiles, quantiles
from tests.known import known

QS = (0.5, 0.9, 0.99)
LEVEL, OWN = 0.3, 0.1  # standard deviations of the log: of the pace of an answer, and of its gaps around that pace
TIMES = 300

Clusters = list[list[float]]


def answers(count: int, gaps: float, level: float, rng: Random) -> Clusters:
    """Gaps of `count` answers, on average `gaps` each; every answer has its own pace."""
    found = []
    for _ in range(count):
        pace = rng.gauss(0.0, level)
        found.append([math.exp(pace + rng.gauss(0.0, OWN)) for _ in range(max(1, round(rng.expovariate(1 / gaps))))])
    return found


def coverage(interval: Callable[[Clusters], Sequence[Quantile]], level: float) -> dict[float, float]:
    """How often the interval contains the quantile of all gaps; a missing bound counts as infinite."""
    rng, held = Random(7), dict.fromkeys(QS, 0)
    spread = math.hypot(level, OWN)
    for _ in range(TIMES):
        for found in interval(answers(60, 30, level, rng)):
            truth = math.exp(spread * NormalDist().inv_cdf(found.q))
            low, high = found.lower or 0.0, found.upper or math.inf
            held[found.q] += low <= truth <= high
    return {q: count / TIMES for q, count in held.items()}


def by_gap(clusters: Clusters) -> Sequence[Quantile]:
    """Treats all gaps as independent."""
    return quantiles(list(chain.from_iterable(clusters)), QS)


def test_intervals_of_correlated_gaps_have_the_nominal_coverage() -> None:
    """Coverage is near 95%; intervals that treat the gaps as independent miss the truth most of the time."""
    clustered = coverage(lambda clusters: clustered_quantiles(clusters, QS), LEVEL)
    alone = coverage(by_gap, LEVEL)
    for q in QS:
        assert 0.88 <= clustered[q] <= 0.99, (q, clustered)
        assert alone[q] < 0.5, (q, alone)


def test_intervals_of_independent_gaps_are_hardly_wider() -> None:
    """The interval is never narrower than that of independent samples, and less than 1.5 times as wide."""
    clustered = coverage(lambda clusters: clustered_quantiles(clusters, QS), 0.0)
    assert all(0.93 <= each <= 1.0 for each in clustered.values()), clustered
    clusters = answers(200, 30, 0.0, Random(3))
    for one, other in zip(clustered_quantiles(clusters, (0.5, 0.9)), by_gap(clusters), strict=False):
        assert (one.estimate, one.count) == (other.estimate, other.count)
        assert known(one.lower) <= known(other.lower)
        assert known(one.upper) >= known(other.upper)
        assert known(one.upper) - known(one.lower) < 1.5 * (known(other.upper) - known(other.lower))


def test_clusters_of_one_sample_give_nearly_the_plain_interval() -> None:
    """Clusters of one are independent samples; Student's t widens the interval a little."""
    rng = Random(4)
    values = [rng.random() for _ in range(1_000)]
    (one,), (other,) = clustered_quantiles([[each] for each in values], (0.5,)), quantiles(values, (0.5,))
    assert one.estimate == other.estimate
    assert one.lower == pytest.approx(other.lower, abs=0.003)
    assert one.upper == pytest.approx(other.upper, abs=0.003)


def test_a_single_cluster_has_no_interval() -> None:
    """One answer has no interval, however many gaps; without gaps there is no result; empty clusters do not count."""
    (found,) = clustered_quantiles([[0.01] * 5_000, []], (0.5,))
    assert (found.estimate, found.lower, found.upper, found.count) == (0.01, None, None, 5_000)
    assert clustered_quantiles([[], []]) == []


def test_stalls_of_a_single_answer_are_one_event() -> None:
    """With all slow gaps in one answer of fifty, p98 has no upper bound, although independent gaps would have one."""
    clusters = [[0.01] * 40 for _ in range(49)] + [[1.0] * 40]
    (found,), (alone,) = clustered_quantiles(clusters, (0.98,)), quantiles(list(chain.from_iterable(clusters)), (0.98,))
    assert found.upper is None
    assert alone.upper == 1.0


def test_the_maximum_and_equal_gaps_do_not_divide_by_zero() -> None:
    """A server that sends in bursts has gaps that are all equal."""
    for found in clustered_quantiles([[0.0] * 8, [0.0] * 8, [0.0] * 8], (0.5, 1.0)):
        assert found.estimate == 0.0
        assert found.upper is None
