"""Intervals of samples that come in clusters."""

import math
from collections.abc import Callable, Sequence
from itertools import chain
from random import Random
from statistics import NormalDist

import pytest

from prober.statistics.clustered_quantiles import clustered_quantiles
from prober.statistics.quantiles import Quantile, quantiles

QS = (0.5, 0.9, 0.99)
LEVEL, OWN = 0.3, 0.1  # standard deviations of the log: of an answer's pace, and of its gaps around that
TIMES = 300

Clusters = list[list[float]]


def answers(count: int, gaps: float, level: float, rng: Random) -> Clusters:
    """Gaps of `count` answers, with about so many gaps each; an answer has a pace of its own."""
    found = []
    for _ in range(count):
        pace = rng.gauss(0.0, level)
        found.append([math.exp(pace + rng.gauss(0.0, OWN)) for _ in range(max(1, round(rng.expovariate(1 / gaps))))])
    return found


def coverage(interval: Callable[[Clusters], Sequence[Quantile]], level: float) -> dict[float, float]:
    """How often the interval holds the quantile of all gaps, an end that is not known held to be far."""
    rng, held = Random(7), dict.fromkeys(QS, 0)
    spread = math.hypot(level, OWN)
    for _ in range(TIMES):
        for found in interval(answers(60, 30, level, rng)):
            truth = math.exp(spread * NormalDist().inv_cdf(found.q))
            low, high = found.lower or 0.0, found.upper or math.inf
            held[found.q] += low <= truth <= high
    return {q: count / TIMES for q, count in held.items()}


def by_gap(clusters: Clusters) -> Sequence[Quantile]:
    """As if every gap was independent."""
    return quantiles(list(chain.from_iterable(clusters)), QS)


def test_of_gaps_that_are_alike_the_interval_is_as_wide_as_it_says() -> None:
    """95% nominal; taken for independent, gaps of the same answers give intervals that miss the truth most of the time."""
    clustered = coverage(lambda clusters: clustered_quantiles(clusters, QS), LEVEL)
    alone = coverage(by_gap, LEVEL)
    for q in QS:
        assert 0.88 <= clustered[q] <= 0.99, (q, clustered)
        assert alone[q] < 0.5, (q, alone)


def test_of_independent_gaps_it_is_that_of_independent_gaps() -> None:
    """It is never narrower, so it holds the truth as often, and not needlessly often."""
    clustered = coverage(lambda clusters: clustered_quantiles(clusters, QS), 0.0)
    assert all(0.93 <= each <= 1.0 for each in clustered.values()), clustered
    clusters = answers(200, 30, 0.0, Random(3))
    for one, other in zip(clustered_quantiles(clusters, (0.5, 0.9)), by_gap(clusters), strict=False):
        assert (one.estimate, one.count) == (other.estimate, other.count)
        assert one.lower is not None
        assert one.upper is not None
        assert other.lower is not None
        assert other.upper is not None
        assert one.lower <= other.lower
        assert one.upper >= other.upper
        assert one.upper - one.lower < 1.5 * (other.upper - other.lower)


def test_of_one_gap_an_answer_it_is_nearly_the_same() -> None:
    """Clusters of one are independent samples; Student's t costs a little."""
    rng = Random(4)
    values = [rng.random() for _ in range(1_000)]
    (one,), (other,) = clustered_quantiles([[each] for each in values], (0.5,)), quantiles(values, (0.5,))
    assert one.estimate == other.estimate
    assert one.lower == pytest.approx(other.lower, abs=0.003)
    assert one.upper == pytest.approx(other.upper, abs=0.003)


def test_one_answer_alone_says_nothing_of_others() -> None:
    """No interval, however many gaps; nothing at all where there are none; answers without gaps do not count."""
    (found,) = clustered_quantiles([[0.01] * 5_000, []], (0.5,))
    assert (found.estimate, found.lower, found.upper, found.count) == (0.01, None, None, 5_000)
    assert clustered_quantiles([[], []]) == []


def test_stalls_of_a_single_answer_are_one_event() -> None:
    """Twenty slow gaps of one answer in fifty: p99 has no upper bound, where independent gaps would claim one."""
    clusters = [[0.01] * 40 for _ in range(49)] + [[1.0] * 40]
    (found,), (alone,) = clustered_quantiles(clusters, (0.98,)), quantiles(list(chain.from_iterable(clusters)), (0.98,))
    assert found.upper is None
    assert alone.upper == 1.0


def test_the_maximum_and_equal_gaps_divide_by_nothing() -> None:
    """A server that sends in bursts has gaps that are all the same."""
    for found in clustered_quantiles([[0.0] * 8, [0.0] * 8, [0.0] * 8], (0.5, 1.0)):
        assert found.estimate == 0.0
        assert found.upper is None
