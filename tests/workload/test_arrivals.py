"""Due times follow their stated processes."""

import math
from itertools import islice, pairwise
from random import Random

import numpy as np
import pytest

from prober.workload.arrivals import constant, derive_seed, gamma, poisson, replay

START = 5 * 10**9


def gaps_s(times: list[int]) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    return np.array([(b - a) / 1e9 for a, b in pairwise([START, *times])])


@pytest.mark.parametrize("rate", [0.2, 100.0])
def test_poisson_gaps_are_exponential(rate: float) -> None:
    """Gaps are exponential (Kolmogorov–Smirnov, 1%), counts have dispersion near 1, neighbours are uncorrelated."""
    n = 20_000
    gaps = gaps_s(list(islice(poisson(rate, Random(7), START), n)))
    ordered = np.sort(gaps)
    cdf = 1 - np.exp(-rate * ordered)
    steps = np.arange(1, n + 1) / n
    distance = max(np.max(steps - cdf), np.max(cdf - steps + 1 / n))
    assert distance < 1.63 / math.sqrt(n)
    counts = np.bincount((np.cumsum(gaps) * rate / 10).astype(int))[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.15)
    assert abs(np.corrcoef(gaps[:-1], gaps[1:])[0, 1]) < 3 / math.sqrt(n)


def test_poisson_never_drifts() -> None:
    """A due time is the exact sum of the gaps before it, rounded once: rounding each gap would add up."""
    n = 200_000
    rng = Random(11)
    exact = math.fsum(-1e7 * math.log(1.0 - rng.random()) for _ in range(n))
    assert next(islice(poisson(100.0, Random(11), START), n - 1, None)) == pytest.approx(START + exact, abs=2, rel=0)


def test_a_schedule_begins_one_gap_after_its_start() -> None:
    """No process has an arrival at the start itself; a replay keeps the first offset of the trace."""
    assert next(constant(2.0, START)) == START + 500_000_000
    assert next(poisson(2.0, Random(1), START)) > START
    assert next(gamma(2.0, 0.5, Random(1), START)) > START
    assert next(replay([6, 10], START, 2.0)) == START + 3


def test_gaps_do_not_depend_on_the_start_time() -> None:
    """The start is added as an integer: a large clock value costs no precision of a gap."""
    near, far = (list(islice(poisson(100.0, Random(5), start), 1_000)) for start in (0, 10**18 + 1))
    assert [due - (10**18 + 1) for due in far] == near


def test_constant_never_drifts() -> None:
    """The millionth due time is exact: rounding errors do not add up."""
    last = next(islice(constant(3.0, START), 999_999, None))
    assert last == START + round(1_000_000 * 1e9 / 3)


@pytest.mark.parametrize("shape", [0.25, 4.0])
def test_gamma_has_its_rate_and_its_burstiness(shape: float) -> None:
    """Mean gap 1/rate, squared coefficient of variation 1/shape."""
    gaps = gaps_s(list(islice(gamma(2.0, shape, Random(3), START), 50_000)))
    assert gaps.mean() == pytest.approx(0.5, rel=0.03)
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(1 / shape, rel=0.06)


def test_replay_keeps_the_recorded_gaps_lap_after_lap() -> None:
    """Gaps are those of the trace, divided by the speed; laps are one mean gap apart."""
    times = list(islice(replay([0, 10, 40], START, 2.0), 6))
    assert [b - a for a, b in pairwise(times)] == [5, 15, 10, 5, 15]


def test_replay_never_drifts() -> None:
    """After ten thousand laps the offsets are still those of the trace."""
    laps, offsets = 10_000, [0, 10, 40]
    times = list(islice(replay(offsets, START, 1.0), 3 * (laps + 1)))[-3:]
    assert [at - START - laps * 60 for at in times] == offsets


def test_seeds_differ_by_every_part() -> None:
    """Instance, target and workload each change the seed, and the boundary between parts matters."""
    seeds = {derive_seed(*parts) for parts in (("a", "b"), ("ab", ""), ("a", "c"), ("b", "b"))}
    assert len(seeds) == 4
    assert derive_seed("a", "b") == derive_seed("a", "b")
