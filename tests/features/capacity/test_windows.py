"""What production's own latencies say about the knee: on queues whose knee is known by theory, and by hand."""

from dataclasses import replace
from decimal import Decimal
from math import exp, log
from random import Random

import pytest

from prober.features.capacity.forecast import Load
from prober.features.capacity.used_share import Bounds, UsedShare
from prober.features.capacity.windows import MAX_WINDOWS, Slow, Window, Windows, shift, slow
from prober.measure.engine_signals import EngineHistogram, EngineInfo, EngineSignals
from prober.measure.objective import Slo
from prober.results.capacity import Capacity, Mix

BOUNDS_S = (0.1, 0.25, 0.5, 1.0)
TTFT = Slo("ttft", "ttft", 0.5, Decimal("0.95"), 2_592_000.0)
LOAD = Load(8.0, 400.0, 100.0)
FOUND = Capacity("ttft", "found", 8.0, 10.0, 12.5, mix=Mix(400, 100, 0.8, 0.2, error=0.0), slope=8.0)
SERVICE_S, LIMIT_S = 0.1, 1.0  # of an M/M/1 queue, whose wait plus service is exponential: P(T > t) = exp(−(μ − λ)·t)


def page(*counts: float) -> EngineSignals:
    """A page whose TTFT histogram has these cumulative counts."""
    return EngineSignals(EngineInfo("vllm"), ttft_seconds=EngineHistogram(BOUNDS_S, counts))


def test_a_histogram_tells_the_slow_requests_between_two_readings() -> None:
    """Exactly where the threshold is one of its bounds, else at least and at most; beyond its last bound at most."""
    then, now = page(0, 5, 10, 10, 10).ttft_seconds, page(0, 55, 80, 95, 110).ttft_seconds
    assert then is not None
    assert now is not None
    assert slow(then, now, 0.5) == Slow(100, 30, 30)
    assert slow(then, now, 0.3) == Slow(100, 30, 50)
    assert slow(then, now, 2.0) == Slow(100, 0, 15)
    assert slow(then, now, 0.05) == Slow(100, 100, 100)


def slow_share(load_per_s: float) -> float:
    """Share of the queue's requests that take longer than the limit."""
    return exp(-(1 / SERVICE_S - load_per_s) * LIMIT_S)


@pytest.mark.parametrize("prior", [0.75, 1.3])
@pytest.mark.parametrize("use", [0.8, 1.0, 1.15])
def test_busy_windows_lead_a_wrong_prior_back_to_the_knee_of_a_queue(prior: float, use: float) -> None:
    """The knee of an M/M/1 queue for 5% is at μ − ln 20 ÷ limit; windows at 80 to 115% of it, with binomial counts."""
    knee_per_s, rng = 1 / SERVICE_S - log(20) / LIMIT_S, Random(1)
    share = slow_share(use * knee_per_s)
    rows = []
    for _ in range(6):
        bad = sum(rng.random() < share for _ in range(2_000))
        rows.append((log(use / prior), Slow(2_000, bad, bad)))
    moved, error = shift(rows, 0.05, 7.0, 0.2)
    assert abs(log(prior) + moved) < max(0.06, 2 * error)
    assert error < 0.18


def test_quiet_windows_say_little_and_disturbed_ones_mislead_little() -> None:
    """At 30% of the knee nothing is slow; one window of seven in which all was slow is an accident, and not a knee."""
    quiet = [(log(0.3), Slow(1_000, 0, 0))] * 7
    moved, error = shift(quiet, 0.05, 8.0, 0.2)
    assert abs(moved) < 0.05
    assert error > 0.17
    moved, _ = shift([*quiet[1:], (log(0.3), Slow(1_000, 900, 900))], 0.05, 8.0, 0.2)
    assert abs(moved) < 0.1
    assert shift([(log(0.9), Slow(3, 3, 3))], 0.05, 8.0, 0.2) == (0.0, 0.2), "three requests are no evidence"
    assert shift([], 0.05, None, 0.3) == (0.0, 0.3)


def test_a_threshold_between_two_bounds_says_no_more_than_they_do() -> None:
    """From none to all: the prior stays. From twice what is allowed up: the knee is below the load."""
    moved, error = shift([(log(0.9), Slow(1_000, 0, 1_000))] * 3, 0.05, 8.0, 0.2)
    assert (moved, error) == pytest.approx((0.0, 0.2), abs=0.01)
    moved, _ = shift([(log(0.9), Slow(1_000, 100, 1_000))] * 3, 0.05, 8.0, 0.2)
    assert moved < log(0.9)


def test_the_busiest_windows_of_a_week_are_kept() -> None:
    """Each of five minutes, with what was slow in it; one without a load is dropped."""
    windows = Windows()
    assert not windows.add([TTFT], page(0, 0, 0, 0, 0), page(0, 10, 90, 95, 100), 150.0)
    assert windows.add([TTFT], page(0, 10, 90, 95, 100), page(0, 20, 180, 190, 200), 150.0)
    windows.keep(0.0, LOAD)
    assert windows.kept == [Window(0.0, LOAD, {"ttft": Slow(200, 20, 20)})]
    windows.keep(300.0, None)
    for number in range(1, 100):
        windows.keep(300.0 * number, LOAD._replace(requests_per_s=number / 10))
    assert len(windows.kept) == MAX_WINDOWS
    assert min(of.load.requests_per_s for of in windows.kept) > 5.2
    windows.keep(9 * 86_400.0, LOAD)
    assert len(windows.kept) == 1


def seen(*bad: int) -> list[Window]:
    """Windows at 8/s, each with 2,000 requests and so many slow ones."""
    return [Window(300.0 * number, LOAD, {"ttft": Slow(2_000, of, of)}) for number, of in enumerate(bad)]


def estimate(bounds: Bounds) -> float:
    assert bounds.lower is not None
    assert bounds.estimate is not None
    assert bounds.upper is not None
    assert bounds.lower <= bounds.estimate <= bounds.upper
    return bounds.estimate


def test_what_users_saw_narrows_the_share_of_a_sweep_like_theirs() -> None:
    """At 80% of the knee by the sweep 5% were slow, which is the budget: it is used up, and that is surer than by the sweep alone."""
    by_sweep = UsedShare([FOUND]).of(LOAD)
    assert estimate(by_sweep) == pytest.approx(0.8)
    both = UsedShare([FOUND], (), {"ttft": 0.05}, seen(100, 95, 110, 90), is_like_users=True).of(LOAD)
    assert estimate(both) == pytest.approx(1.0, abs=0.06)
    assert (both.upper or 0) - (both.lower or 0) < 0.5 * ((by_sweep.upper or 0) - (by_sweep.lower or 0))


def test_a_sweep_of_other_requests_is_not_judged_by_what_users_saw_but_the_users_headroom_is() -> None:
    """Users miss the SLO by far: for them the capacity is used up, whatever fits of the sweep's requests."""
    share = UsedShare([FOUND], (), {"ttft": 0.05}, seen(300, 320, 310))
    assert estimate(share.of(LOAD)) == pytest.approx(0.8)
    assert estimate(share.of(LOAD, {"ttft"})) > 1.0
    assert share.of(LOAD, {"tpot"}) == Bounds(), "no sweep has judged that SLO"


def test_a_bound_is_a_bound_for_users_too() -> None:
    """Only that it fails at 5/s is known."""
    below = replace(FOUND, verdict="below", lower=None, estimate=None, upper=5.0)
    assert UsedShare([below]).of(LOAD) == Bounds(lower=8 / 5)
