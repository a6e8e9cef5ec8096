"""When demand reaches capacity: figures worked out by hand, intervals that hold what they promise, and silence where due."""

import json
import math

import numpy as np
import pytest

from prober.features.capacity.forecast import DAY_S, Forecast, Load, Peaks, forecast, peaks_of, trend
from prober.statistics.paired_test import student_quantile

MONDAY = 20_000 // 7 * 7 + 4  # 1970 began on a Thursday


def days(*peaks: float, first: int = 100) -> dict[int, float]:
    return {first + place: peak for place, peak in enumerate(peaks)}


def noon(day: int) -> float:
    return day * DAY_S + DAY_S / 2


@pytest.mark.parametrize(
    ("level", "freedom", "t"),
    [
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.99, 3, 5.841),
        (0.95, 6, 2.447),
        (0.99, 5, 4.032),
        (0.95, 27, 2.052),
        (0.95, 120, 1.980),
    ],
)
def test_student_s_t_is_that_of_the_tables(level: float, freedom: int, t: float) -> None:
    """Two-sided, odd and even degrees of freedom."""
    assert student_quantile(level, freedom) == pytest.approx(t, abs=5e-4)


def test_a_line_and_its_interval_are_those_worked_out_by_hand() -> None:
    """1 3 2 5 4 6 7 on days 0 to 6: Sxx = 28, Sxy = 26, Syy = 28; slope 26/28, squares left 28 − 26²/28 = 27/7 on 5 degrees."""
    found = trend(days(1, 3, 2, 5, 4, 6, 7, first=0))
    assert (found.slope, found.freedom, found.spread, found.cycle, found.level) == (26 / 28, 5, 28, 1, 0.99)
    assert found.scatter == pytest.approx(math.sqrt(27 / 35))
    assert found.margin == pytest.approx(4.0321 * math.sqrt(27 / 35 / 28), rel=1e-4)
    lower, line, upper = found.at(10)
    assert line == pytest.approx(4 + 26 / 28 * 7)  # 10.5
    half = 4.0321 * math.sqrt(27 / 35) * math.sqrt(1 + 1 / 7 + 49 / 28)  # 6.023
    assert lower == pytest.approx(10.5 - half, rel=1e-4)
    assert upper == pytest.approx(10.5 + half, rel=1e-4)


def test_from_two_weeks_on_each_day_of_the_week_has_its_line() -> None:
    """Days of 10, weekends of 4, 7 more each week: one a day, nothing scatters, and the next Monday is 10 + 14, Saturday 18."""
    peaks = days(*(week * 7 + (10 if place < 5 else 4) for week in range(2) for place in range(7)), first=MONDAY)
    found = trend(peaks)
    assert (found.cycle, found.slope, found.freedom, found.level) == (7, 1, 6, 0.95)
    assert found.spread == 7 * 2 * 3.5**2
    assert found.scatter == 0
    assert found.at(MONDAY + 14) == (24, 24, 24)
    assert found.at(MONDAY + 19)[1] == 18


def test_the_day_is_the_first_whose_peak_is_not_below_the_capacity() -> None:
    """10, 11, … 19 on days 100 to 109: 24 on day 114, whose beginning is the time; without scatter the bounds are the line."""
    peaks = days(*range(10, 20))
    at = float(114 * DAY_S)
    assert forecast(peaks, (24, 24, 24), noon(110)) == Forecast(at, at, at)
    bounds = forecast(peaks, (22.5, 24, 27), noon(110))
    assert bounds == Forecast(113.0 * DAY_S, at, 117.0 * DAY_S)


def test_scatter_parts_the_bounds() -> None:
    """Earliest, estimate, latest in this order, and a latest that the horizon does not hold is not there."""
    rng = np.random.default_rng(3)
    peaks = days(*(50 + 1.5 * day + rng.normal(0, 2) for day in range(28)))
    found = forecast(peaks, (105, 110, 115), noon(128))
    assert found.earliest_s is not None
    assert found.estimate_s is not None
    assert found.latest_s is not None
    assert 128 * DAY_S <= found.earliest_s < found.estimate_s < found.latest_s
    assert found.estimate_s == pytest.approx(140 * DAY_S, abs=2 * DAY_S)
    assert forecast(peaks, (120, 130, 150), noon(128)).latest_s is None


def test_six_days_say_nothing() -> None:
    """However clear they look."""
    assert forecast(days(*range(6)), (7, 7, 7), noon(106)) == Forecast()
    with pytest.raises(ValueError, match="2 days of peaks"):
        trend(days(1, 2))


@pytest.mark.parametrize(
    "peaks",
    [
        days(*[5.0] * 10),
        days(*range(20, 10, -1)),
        days(5, 9, 4, 8, 6, 9, 5, 9, 6, 10),
        days(4, 4, 10, 10, 10, 10, 10),
        days(*[4, 4, 10, 10, 10, 10, 10] * 2),
    ],
    ids=["flat", "falling", "not more than scatter", "a week from a Saturday", "two of them"],
)
def test_what_does_not_surely_grow_is_not_foreseen(peaks: dict[int, float]) -> None:
    """0 in the slope's interval: no date, not even where the capacity is near."""
    assert forecast(peaks, (10.5, 11, 12), noon(max(peaks) + 1)) == Forecast()


def test_it_looks_no_further_than_twice_what_it_saw_nor_than_30_days() -> None:
    """Ten days of growth by 1 from 10: day 20 after the last is seen, day 21 not; of 35 days, day 30 and not 31."""
    ten, many = days(*range(10, 20)), days(*range(10, 45))
    assert forecast(ten, (39, 39, 39), noon(110)).estimate_s == 129 * DAY_S
    assert forecast(ten, (39.5, 39.5, 39.5), noon(110)) == Forecast()
    assert forecast(many, (74, 74, 74), noon(135)).estimate_s == 164 * DAY_S
    assert forecast(many, (74.5, 74.5, 74.5), noon(135)) == Forecast()


def test_old_peaks_see_less_far() -> None:
    """The horizon is counted from the last peak; what was due before today is due today."""
    peaks = days(*range(10, 20))
    assert forecast(peaks, (24, 24, 24), noon(120)).estimate_s == 120 * DAY_S
    assert forecast(peaks, (24, 24, 24), noon(130)) == Forecast()


@pytest.mark.parametrize(("length", "level"), [(10, 0.99), (21, 0.95)])
def test_the_interval_holds_the_next_peaks_as_often_as_it_says(length: int, level: float) -> None:
    """Over 2,000 courses with growth, scatter and (where it is told apart) a week, of a day a week ahead."""
    rng, held = np.random.default_rng(11), 0
    week = [0, 0, 0, 0, 0, -30, -40] if length >= 14 else [0] * 7
    for _ in range(2000):
        course = [100 + 2 * day + week[day % 7] + rng.normal(0, 10) for day in range(length + 7)]
        lower, _, upper = trend(days(*course[:length], first=0)).at(length + 6)
        held += lower <= course[-1] <= upper
    assert held / 2000 == pytest.approx(level, abs=0.012)


@pytest.mark.parametrize("length", [7, 10, 13, 14, 28])
def test_a_week_without_growth_is_hardly_ever_taken_for_growth(length: int) -> None:
    """Quiet weekends, scatter of 5%, begun on any day of the week: at most 3 in 100 are."""
    rng, taken = np.random.default_rng(5), 0
    for run in range(1400):
        peaks = days(*((50 if (run + day) % 7 < 2 else 100) * rng.normal(1, 0.05) for day in range(length)))
        line = trend(peaks)
        taken += line.slope > line.margin
    assert taken / 1400 <= 0.03


def test_a_peak_is_the_highest_of_a_day_by_utc() -> None:
    """By its tokens, of days that are over and were seen for 20 hours; the days that began or ended unseen are left out."""
    peaks = Peaks()
    peaks.take(101 * DAY_S, Load(99.0, 10, 10))
    of_two_days = {101: Load(29, 80, 20), 102: Load(30, 80, 20)}
    for hour in range(9, 24 * 4 - 6):
        peaks.take(100 * DAY_S + hour * 3600 + 1800, Load(5.0 + hour % 24 + hour // 24, 80, 20))
    assert peaks.of_complete_days(noon(103)) == of_two_days
    assert peaks.of_complete_days(noon(104)) == of_two_days
    assert peaks.of_complete_days(noon(102)) == {101: Load(29, 80, 20)}


def test_peaks_of_five_weeks_are_kept_and_survive_json() -> None:
    """The newest 35 that are over, and the day that is not."""
    peaks = Peaks()
    for hour in range(24 * 50 + 12):
        peaks.take(hour * 3600.0, Load(hour / 24, 80.5, 20))
    assert list(peaks.of_complete_days(noon(50))) == list(range(15, 50))
    again = peaks_of(json.loads(json.dumps(peaks.rows())))
    assert again == peaks
    assert len(again.days) == 36
    again.take(noon(50), Load(99, 80, 20))
    assert again.days[50][0].requests_per_s == 99
    assert list(peaks.of_complete_days(noon(60))) == list(range(25, 50))


@pytest.mark.parametrize("rows", [[[1, 2]], [3], [["x", 1, 2, 2, 2]], [[1, 2, None, 2, 2]], [[1, 2, 1e999, 2, 2]]])
def test_rows_that_are_none_are_refused(rows: list[list[float]]) -> None:
    """With a ValueError, whatever is wrong."""
    with pytest.raises(ValueError, match=r"."):
        peaks_of(rows)
