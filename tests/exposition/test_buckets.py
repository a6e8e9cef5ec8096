"""Bounds of histograms, whatever the thresholds."""

import itertools
import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prober.exposition.buckets import COARSE, MAX_BOUNDS, bounds, representatives

THRESHOLD = st.floats(0.001, 100.0)


@given(st.sampled_from(["request", "token"]), st.lists(THRESHOLD, max_size=MAX_BOUNDS))
def test_every_threshold_is_a_bound_and_there_are_never_too_many(kind: str, thresholds: list[float]) -> None:
    """Thresholds are bounds exactly as given, and at most 60 bounds rise strictly."""
    all_bounds = bounds(kind, thresholds)
    assert set(thresholds) <= set(all_bounds)
    assert len(all_bounds) <= MAX_BOUNDS
    assert all(a < b for a, b in itertools.pairwise(all_bounds))


@given(st.floats(0.02, 20.0))
def test_one_threshold_has_fine_bounds_within_a_factor_of_two(threshold: float) -> None:
    """Bounds are 12% apart (13.5% with rounding) within a factor of two, and nowhere more than twice the usual 26%."""
    all_bounds = bounds("request", [threshold])
    for low, high in itertools.pairwise(all_bounds):
        near = threshold / 2 <= low and high <= threshold * 2
        assert high / low < (1.135 if near else 1.59)


@pytest.mark.parametrize(("kind", "low", "high"), [("request", 0.005, 100.0), ("token", 0.001, 10.0)])
def test_the_whole_range_is_covered_ten_a_decade(kind: str, low: float, high: float) -> None:
    """Without thresholds the bounds reach over the range of their kind, 26% apart."""
    all_bounds = bounds(kind)
    assert all_bounds[0] == pytest.approx(low, rel=0.01)
    assert all_bounds[-1] == high
    assert all(1.24 < b / a < 1.28 for a, b in itertools.pairwise(all_bounds))


def test_the_order_of_thresholds_changes_nothing() -> None:
    """A reload that only reorders SLOs keeps its histograms."""
    thresholds = [0.5, 2.0, 0.6, 10.0]
    assert len({bounds("request", order) for order in itertools.permutations(thresholds)}) == 1


def test_more_thresholds_than_bounds_are_refused() -> None:
    """Thresholds never give way, so too many are an error that says so."""
    with pytest.raises(ValueError, match="61 different thresholds, but a histogram has at most 60 bounds"):
        bounds("request", [i / 10 for i in range(1, 62)])


def test_the_coarse_bounds_are_twelve() -> None:
    """A histogram without an SLO has twelve bounds."""
    assert len(COARSE) == 12


@pytest.mark.parametrize(("median", "sigma"), [(0.08, 0.4), (0.5, 0.2), (2.0, 0.8)])
def test_representatives_are_distributed_as_the_samples_were(median: float, sigma: float) -> None:
    """Quantiles of 200 values taken back from a histogram are those of the 5,000 that went in, within half a bucket."""
    rng = Random(1)
    samples = sorted(median * math.exp(rng.gauss(0.0, sigma)) for _ in range(5_000))
    edges = (*bounds("request"), math.inf)
    buckets = [(edge, float(sum(sample <= edge for sample in samples))) for edge in edges]
    values = sorted(representatives(buckets, 200))
    assert len(values) == 200
    for q in (0.05, 0.25, 0.5, 0.75, 0.9, 0.99):
        assert values[int(q * 200)] == pytest.approx(samples[int(q * 5_000)], rel=0.13)


def test_representatives_have_no_trend_and_no_infinity() -> None:
    """Values above the last bound equal it; neighbours are not sorted."""
    values = representatives([(0.1, 50.0), (1.0, 80.0), (math.inf, 100.0)], 100)
    assert max(values) == 1.0
    assert min(values) > 0.05
    rises = sum(a < b for a, b in itertools.pairwise(values))
    assert 20 < rises < 80
    assert representatives([(0.1, 0.0), (math.inf, 3.0)], 1) == [0.1]
