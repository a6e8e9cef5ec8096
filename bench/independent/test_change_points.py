"""The offline search of `bench.change_points` on series whose rises are known."""

import math

import numpy as np
import pytest

pytest.importorskip("ruptures", reason="ruptures has no release for this Python")

from bench.change_points import BIN_S, BINS_A_DAY, Found, Series, by_search, found_by, residuals, rises
from bench.independent.odd_days import DAY_S, HOUR_S, Floats

DAYS = 6


def series(levels: Floats, change_s: float) -> Series:
    """A probe each 5 s around a level for each bin, with a wave over the day and a queue now and then."""
    rng = np.random.default_rng(1)
    at_s: Floats = 2.5 + 5.0 * np.arange(levels.size * int(BIN_S / 5), dtype=np.float64)
    wave = 0.2 * np.sin(2 * np.pi * at_s / DAY_S)
    waits = np.where(rng.random(at_s.size) < 0.3, rng.exponential(2.0, at_s.size), 0.0)
    ttft_s = 0.3 * np.exp(np.repeat(levels, int(BIN_S / 5)) + wave + 0.1 * rng.standard_normal(at_s.size)) + waits
    return Series("made", 1e9 + at_s, ttft_s, np.ones(at_s.size), change_s)


def stepped(*steps: tuple[float, float]) -> Floats:
    """Log levels of bins that change by so much at a day."""
    levels = np.zeros(DAYS * BINS_A_DAY)
    for day, by in steps:
        levels[round(day * BINS_A_DAY) :] += by
    return levels


def test_a_rise_is_found_where_it_is_and_a_wave_or_a_queue_is_none() -> None:
    """+30% on the sixth day, within an hour; nothing without it."""
    change_s = 5.2 * DAY_S
    found = by_search(series(stepped((5.2, math.log(1.3))), change_s))
    assert 30 <= found.delay_min <= 120
    assert not found.before_s
    quiet = by_search(series(stepped(), change_s))
    assert math.isinf(quiet.delay_min)
    assert not quiet.before_s


def test_a_fall_and_a_small_rise_are_no_rises() -> None:
    """Only 10% and more upwards."""
    assert rises(residuals(series(stepped((3.0, -0.4)), 5 * DAY_S))) == []
    assert rises(residuals(series(stepped((3.0, 0.05)), 5 * DAY_S))) == []


def test_a_rise_before_the_change_is_another() -> None:
    """A burst of three hours, two days before."""
    levels = stepped((3.0, 0.5), (3.125, -0.5), (5.2, 0.3))
    found = by_search(series(levels, 5.2 * DAY_S))
    assert math.isfinite(found.delay_min)
    assert [round(at_s / HOUR_S) for at_s in found.before_s] == [72]


def test_who_found_a_change() -> None:
    """Four cases."""
    names = [found_by(Found(a), Found(b)) for a in (1.0, math.inf) for b in (30.0, math.inf)]
    assert names == ["both", "only the detector", "only the search", "none"]
