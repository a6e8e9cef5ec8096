"""Tests of the null signals. They lie here because the tests of the product import no benchmark."""

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.independent.nulls import (
    DAY_S,
    HELD_OUT,
    KINDS,
    LOAD_IS_IRRELEVANT,
    MONDAY_UNIX_S,
    PROBE_INTERVAL_S,
    TUNING,
    Bools,
    Floats,
    Lane,
    changed,
    lane,
    lanes,
    ramped,
    tailed,
)

DAYS = 15.0
SEED = 20


def sample(kind: str, number: int = 4, days: float = DAYS) -> list[Lane]:
    """Some lanes whose load is seen."""
    return list(lanes(kind, number, days, SEED, load_seen=True))


def load(lane: Lane) -> Floats:
    """Load of a lane that has it."""
    assert lane.load is not None
    return lane.load


def smooth(values: Floats, probes: int) -> Floats:
    """Means of blocks."""
    return np.asarray(values[: values.size // probes * probes].reshape(-1, probes).mean(axis=1))


def autocorrelation(values: Floats, lag: int = 1) -> float:
    """Correlation with the value some probes later."""
    return float(np.corrcoef(values[lag:], values[:-lag])[0, 1])


def fifths(lane: Lane) -> tuple[Bools, Bools]:
    """Probes of the least and of the greatest smoothed load."""
    level = np.convolve(load(lane), np.ones(60) / 60, "same")
    low, high = np.quantile(level, [0.2, 0.8])
    return level <= low, level >= high


def local_time(lane: Lane) -> Floats:
    """Seconds since a local midnight of Monday, by the rule that a lane begins between 10:00 and 15:00 local time.

    The hour is that of the zone which puts the first probe at 12:30 best, so it may be off by two hours.
    """
    since_monday = lane.unix_s - MONDAY_UNIX_S
    return np.asarray(since_monday + 3600 * np.round(12.5 - since_monday[0] % DAY_S / 3600))


def by_hour(lane: Lane, values: Floats) -> Floats:
    """Means by hour of the day in UTC, shape (24,)."""
    hour = (lane.unix_s % DAY_S // 3600).astype(np.int64)
    return np.array([values[hour == wanted].mean() for wanted in range(24)])


def by_day(values: Floats) -> Floats:
    """Means by days since the start."""
    return smooth(values, int(DAY_S / PROBE_INTERVAL_S))


def test_halves() -> None:
    """No kind is in both halves, the halves are of equal size, and there are at least fourteen kinds."""
    assert not set(TUNING) & set(HELD_OUT)
    assert len(TUNING) == len(HELD_OUT) >= 7
    assert set(KINDS) >= LOAD_IS_IRRELEVANT


@pytest.mark.parametrize("kind", KINDS)
def test_shape(kind: str) -> None:
    """Times ascend on a grid of 5 s and begin by day; TTFT is finite; load is an integer of at least 0."""
    (only,) = sample(kind, number=1, days=2)
    assert only.unix_s.shape == only.log_ttft.shape == load(only).shape
    steps = np.diff(only.unix_s) / PROBE_INTERVAL_S
    assert steps.min() >= 1
    assert np.allclose(steps, np.round(steps))
    assert np.isfinite(only.log_ttft).all()
    readings = load(only)[~np.isnan(load(only))]
    assert (readings >= 0).all()
    assert (readings == np.round(readings)).all()
    if kind not in ("missing_data", "worn_service"):
        assert only.unix_s.size == 2 * DAY_S / PROBE_INTERVAL_S
        assert readings.size == only.unix_s.size
    median_s = np.exp(np.median(only.log_ttft))
    assert 0.01 < median_s < 12


@pytest.mark.parametrize("kind", KINDS)
def test_determinism(kind: str) -> None:
    """A lane depends on kind, index and seed only; without load it is the same series."""
    first, second = lanes(kind, 2, 1, SEED, load_seen=True)
    again = lane(kind, 1, 1, SEED, load_seen=False)
    assert again.load is None
    assert (again.log_ttft == second.log_ttft).all()
    assert not np.array_equal(first.log_ttft, second.log_ttft)
    assert not np.array_equal(first.log_ttft, lane(kind, 0, 1, SEED + 1, load_seen=True).log_ttft)


def test_start() -> None:
    """Lanes begin on all weekdays."""
    starts = [int(local_time(only)[0] // DAY_S) % 7 for only in lanes("independent", 60, 0.01, SEED, load_seen=False)]
    assert set(starts) == set(range(7))


@pytest.mark.parametrize("kind", sorted(LOAD_IS_IRRELEVANT))
def test_irrelevant_load(kind: str) -> None:
    """Load that is named irrelevant is not correlated with TTFT."""
    for only in sample(kind):
        assert abs(np.corrcoef(only.log_ttft, load(only))[0, 1]) < 0.03


@pytest.mark.parametrize("kind", sorted(set(KINDS) - LOAD_IS_IRRELEVANT - {"missing_data", "worn_service"}))
def test_relevant_load(kind: str) -> None:
    """Any other load changes the level of TTFT or its spread."""
    for only in sample(kind):
        low, high = fifths(only)
        quantiles = [np.quantile(only.log_ttft[part], [0.1, 0.5, 0.9]) for part in (low, high)]
        assert np.abs(quantiles[0] - quantiles[1]).max() > 0.05


def test_page_is_late() -> None:
    """The page's reading is the load at the probe or 5 s before it, so neither explains it fully."""
    for only in sample("weekend"):
        assert 0.5 < autocorrelation(load(only)) < 0.9999


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [("independent", -0.01, 0.01), ("ar_0.3", 0.22, 0.36), ("ar_0.6", 0.5, 0.66), ("low_variance", -0.01, 0.01)],
)
def test_autocorrelation(kind: str, low: float, high: float) -> None:
    """The correlation of neighbours is the stated one, and that at two probes its square."""
    for only in sample(kind):
        assert low < autocorrelation(only.log_ttft) < high
        assert abs(autocorrelation(only.log_ttft, 2) - autocorrelation(only.log_ttft) ** 2) < 0.05


def test_independent_is_lognormal() -> None:
    """Log TTFT has neither skew nor excess."""
    for only in sample("independent"):
        score = (only.log_ttft - only.log_ttft.mean()) / only.log_ttft.std()
        assert abs((score**3).mean()) < 0.03
        assert abs((score**4).mean() - 3) < 0.06


@pytest.mark.parametrize("kind", ["bimodal", "hit_ratio_by_load"])
def test_two_modes(kind: str) -> None:
    """Hits and misses are apart: the middle between the modes is the least dense part."""
    for only in sample(kind):
        low, high = np.quantile(only.log_ttft, [0.02, 0.98])
        density, _ = np.histogram(only.log_ttft, bins=24, range=(low, high))
        assert density[6:18].min() < 0.5 * min(density[:9].max(), density[15:].max())


def test_bimodal_share_is_fixed() -> None:
    """The share of slow answers is the same on all days and at all hours."""
    for only in sample("bimodal"):
        slow = (only.log_ttft > (only.log_ttft.max() + only.log_ttft.min()) / 2).astype(np.float64)
        assert np.ptp(by_day(slow)) < 0.05
        assert np.ptp(by_hour(only, slow)) < 0.06


def test_hit_ratio_falls_with_load() -> None:
    """Misses are at least a quarter more frequent in the busiest fifth than in the quietest."""
    for only in sample("hit_ratio_by_load"):
        low, high = fifths(only)
        middle = np.quantile(only.log_ttft[low], 0.5) + 0.5
        assert (only.log_ttft[high] > middle).mean() > (only.log_ttft[low] > middle).mean() + 0.25


@pytest.mark.parametrize("kind", ["office_hours", "holiday", "random_amplitude", "weekend", "daylight_saving", "queue"])
def test_day(kind: str) -> None:
    """The load of the busiest hour is several times that of the quietest."""
    for only in sample(kind):
        hours = by_hour(only, load(only))
        assert hours.max() > 2 * hours.min()


def test_night_is_flat() -> None:
    """Four hours of the night have the same load, and lunch is a dip."""
    for only in sample("office_hours", number=8):
        hours = np.sort(by_hour(only, load(only)))
        assert hours[8] - hours[0] < 0.08 * hours[-1]
        assert np.median(hours[-7:]) > 0.8 * hours[-1]


def days_of(only: Lane) -> tuple[Floats, NDArray[np.int64]]:
    """Busiest hour of the local days that are complete, and their weekdays."""
    day = (local_time(only) // DAY_S).astype(np.int64)
    complete = np.unique(day)[1:-1]
    peaks = np.array([smooth(load(only)[day == wanted], 720).max() for wanted in complete])
    return peaks, complete % 7


@pytest.mark.parametrize("kind", ["weekend", "friday_weekend", "holiday", "weekday_trend", "daylight_saving"])
def test_weekend_is_quiet(kind: str) -> None:
    """The peaks of Saturday and Sunday, or of Friday and Saturday, are well below those of the other days."""
    for only in sample(kind):
        peaks, weekday = days_of(only)
        is_quiet = (weekday == 5) | (weekday == (4 if kind == "friday_weekend" else 6))
        assert np.median(peaks[is_quiet]) < 0.55 * np.median(peaks[~is_quiet])


def test_holiday() -> None:
    """At least one day from Monday to Friday is as quiet as the weekend."""
    for only in sample("holiday", days=30):
        peaks, weekday = days_of(only)
        quiet = peaks[weekday < 5] < 1.3 * peaks[weekday >= 5].max()
        assert 1 <= quiet.sum() <= 4


def test_weekday_trend() -> None:
    """Friday's peak is above Monday's."""
    for only in sample("weekday_trend"):
        peaks, weekday = days_of(only)
        assert peaks[weekday == 4].mean() > 1.1 * peaks[weekday == 0].mean()


def test_random_amplitude() -> None:
    """Peaks of the days differ more than with equal days."""

    def spread(kind: str) -> float:
        return float(np.median([days_of(only)[0].std() / days_of(only)[0].mean() for only in sample(kind)]))

    assert spread("random_amplitude") > 0.1
    assert spread("random_amplitude") > 1.5 * spread("office_hours")


def test_daylight_saving() -> None:
    """The hours of the day of the last days are those of the first days, shifted by an hour."""
    for only in sample("daylight_saving", days=28):
        week = int(7 * DAY_S / PROBE_INTERVAL_S)
        start, end = (
            by_hour(Lane(only.unix_s[part], only.log_ttft[part], None), load(only)[part])
            for part in (slice(0, week), slice(-week, None))
        )
        distances = {shift: np.abs(np.roll(start, shift) - end).sum() for shift in (-1, 0, 1)}
        assert min(distances, key=lambda shift: distances[shift]) != 0


def test_heavy_tail() -> None:
    """The tail index of TTFT by Hill's estimator is below 2, so the variance is infinite."""
    for only in sample("heavy_tail"):
        largest = np.sort(only.log_ttft)[-300:]
        assert 1.0 < 1 / (largest - largest[0]).mean() < 2.2


@pytest.mark.parametrize("kind", ["queue", "load_scaled_noise"])
def test_spread_grows_with_load(kind: str) -> None:
    """The spread of log TTFT in the busiest fifth is well above that of the quietest."""
    for only in sample(kind):
        low, high = fifths(only)
        assert only.log_ttft[high].std() > 1.3 * only.log_ttft[low].std()


def test_queue_is_correlated() -> None:
    """The waiting times of neighbouring probes in busy hours are correlated."""
    for only in sample("queue"):
        _, high = fifths(only)
        busy = np.flatnonzero(high[1:] & high[:-1])
        assert np.corrcoef(only.log_ttft[busy], only.log_ttft[busy + 1])[0, 1] > 0.05


def test_median_of_load_scaled_noise() -> None:
    """The median moves by less than a sixth of an e-fold."""
    for only in sample("load_scaled_noise"):
        low, high = fifths(only)
        assert abs(np.median(only.log_ttft[high]) - np.median(only.log_ttft[low])) < 0.16


def test_stepped() -> None:
    """At night TTFT is a uniform wait plus some of few numbers of steps: bounded, and not lognormal."""
    for only in sample("stepped"):
        low, _ = fifths(only)
        ttft_s = np.exp(only.log_ttft[low])
        assert ttft_s.max() / np.quantile(ttft_s, 0.001) < 25


def test_hourly_batch() -> None:
    """Load and TTFT of the first ten minutes of an hour are above the rest; full hours of a zone are those of UTC."""
    for only in sample("hourly_batch"):
        batch = only.unix_s % 3600 < 540
        quiet = (only.unix_s % 3600 > 780) & (only.unix_s % 3600 < 3420)
        assert load(only)[batch].mean() > 1.5 * load(only)[quiet].mean()
        assert only.log_ttft[batch].mean() > only.log_ttft[quiet].mean() + 0.05


def test_nightly_backup() -> None:
    """One span of twenty minutes of the night is slower than the hours around it, at the same load."""
    for only in sample("nightly_backup"):
        blocks = (only.unix_s % DAY_S // 1200).astype(np.int64)
        ttft, seen = (
            np.array([values[blocks == wanted].mean() for wanted in range(72)])
            for values in (only.log_ttft, load(only))
        )
        quiet = seen < np.sort(seen)[30]
        rises = np.where(quiet, ttft - np.median(ttft[quiet]), 0)
        assert rises.max() > 0.2
        assert np.sort(rises)[-2] < 0.5 * rises.max()


def test_slow_wander() -> None:
    """Means of half-hours have a standard deviation near 3%, far above that of independent noise."""
    for only in sample("slow_wander"):
        means = smooth(only.log_ttft, 360)
        assert 0.02 < means.std() < 0.042
        assert autocorrelation(means) > 0.2


def test_two_replicas() -> None:
    """Neighbouring probes share a replica more often than independent ones in some lanes, and TTFT has a wide centre."""
    correlations = []
    for only in sample("two_replicas", number=8):
        low, _ = fifths(only)
        night = np.flatnonzero(low[1:] & low[:-1])
        correlations.append(np.corrcoef(only.log_ttft[night], only.log_ttft[night + 1])[0, 1])
        score = (only.log_ttft[low] - only.log_ttft[low].mean()) / only.log_ttft[low].std()
        assert (score**4).mean() < 3.05
    assert max(correlations) > 0.2


def test_timer_ticks() -> None:
    """TTFT has few different values."""
    for only in sample("timer_ticks"):
        assert np.unique(only.log_ttft).size < 1000


def test_low_variance() -> None:
    """The standard deviation is 2%."""
    for only in sample("low_variance"):
        assert only.log_ttft.std() == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize("kind", ["missing_data", "worn_service"])
def test_missing_data(kind: str) -> None:
    """Some hours have no probes, and in some hours the page is not readable."""
    for only in sample(kind):
        assert np.diff(only.unix_s).max() > 3600
        unreadable = np.isnan(load(only))
        assert 0.001 < unreadable.mean() < 0.05


@pytest.mark.parametrize("kind", ["busy_service", "worn_service"])
def test_mixtures(kind: str) -> None:
    """TTFT rises with load and keeps a correlation between neighbours."""
    for only in sample(kind):
        readable = ~np.isnan(load(only))
        assert np.corrcoef(only.log_ttft[readable], load(only)[readable])[0, 1] > 0.1
        assert autocorrelation(only.log_ttft) > 0.03


def test_changes() -> None:
    """Changes begin at their index, leave the argument alone, and have the stated size."""
    (only,) = sample("independent", number=1, days=1)
    before = only.log_ttft.copy()
    results = (
        changed(only.log_ttft, 1000, 1.3),
        tailed(only.log_ttft, 1000, 4.0, share=0.1, seed=1),
        ramped(only.log_ttft, 1000, 1.5, probes=500),
    )
    assert (only.log_ttft == before).all()
    shifts = [result - before for result in results]
    assert all((shift[:1000] == 0).all() for shift in shifts)
    assert shifts[0][1000:] == pytest.approx(np.log(1.3))
    assert sorted(set(np.round(shifts[1][1000:], 9))) == pytest.approx([0, np.log(4)])
    assert (shifts[1][1000:] > 0).mean() == pytest.approx(0.1, abs=0.01)
    assert (np.diff(shifts[2]) >= -1e-12).all()
    assert shifts[2][1500] == pytest.approx(np.log(1.5))


def test_kinds_state_their_property() -> None:
    """A kind's docstring is what a reader of a table sees."""
    assert all(build.__doc__ for build in KINDS.values())
