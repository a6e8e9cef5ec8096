"""Forecasts when demand reaches capacity: a straight line through daily peaks, with intervals.

Ordinary least squares and its interval for one more observation, at x beside n points with mean x̄ and scatter s:
ŷ ± t·s·√(1 + 1/n + (x − x̄)²/Σ(xᵢ − x̄)²) (Montgomery, Peck, Vining, "Introduction to Linear Regression Analysis", 2.5). After two
weeks each day of the week has its own line, with a common slope, so that a quiet weekend does not look like a fall. Assumptions: the
scatter of the days about the line is independent and constant, and growth continues. Neither is certain, so the horizon is twice the
observed time, at most 30 days. If high days follow high days (correlation 0.5), 10% of series without growth appear to grow
instead of 2.5%; few of them reach a capacity that is not near.

Plain Python: the daemon makes forecasts and does not load numpy.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from prober.statistics.paired_test import student_quantile

DAY_S, HOUR_S = 86_400, 3_600
MAX_DAYS = 35  # of peaks: five weeks, since growth over longer times is rarely linear
MIN_HOURS = 20  # with data for a counted peak: a partly observed day would look like growth
MIN_DAYS = 7  # with a peak for a forecast
MAX_HORIZON_DAYS = 30
WEEK = 7
LEVEL_BY_WEEKDAY = 0.95  # for lines by day of the week
# For a single line: the step from a weekend to a working week has t = 2.9 over 7 days, which is 0.965.
LEVEL_SINGLE_LINE = 0.99


class Load(NamedTuple):
    """Requests per second, mean prompt and output tokens of a request, and the relative standard error of the load."""

    requests_per_s: float
    prompt_tokens: float
    output_tokens: float
    log_error: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.requests_per_s * (self.prompt_tokens + self.output_tokens)


@dataclass(slots=True)
class Peaks:
    """Per UTC day, the load with the most tokens per second. days: {days since 1970: (load, bit mask of hours with data)}"""

    days: dict[int, tuple[Load, int]] = field(default_factory=dict)

    def take(self, unix_s: float, load: Load) -> None:
        """Add a load to the peak of its day."""
        day, second = divmod(int(unix_s), DAY_S)
        highest, hours = self.days.get(day, (load, 0))
        self.days[day] = max(highest, load, key=lambda of: of.tokens_per_s), hours | 1 << second // HOUR_S
        while len(self.days) > MAX_DAYS + 1:  # and the current day
            del self.days[min(self.days)]

    def of_complete_days(self, unix_s: float) -> dict[int, Load]:
        """{days since 1970: peak} of recent complete days with enough data."""
        today = int(unix_s) // DAY_S
        return {
            day: highest
            for day, (highest, hours) in sorted(self.days.items())
            if today - MAX_DAYS <= day < today and hours.bit_count() >= MIN_HOURS
        }

    def rows(self) -> list[list[float]]:
        """Rows for JSON; `peaks_of` reads them."""
        return [[day, hours, *highest] for day, (highest, hours) in sorted(self.days.items())]


def peaks_of(rows: Iterable[Iterable[float]]) -> Peaks:
    """Read peaks from the result of `rows`. Raises ValueError."""
    try:
        peaks = {int(day): (Load(*map(float, highest)), int(hours)) for day, hours, *highest in rows}
    except (TypeError, OverflowError) as problem:
        raise ValueError(f"these are no daily peaks: {problem}") from None
    if not all(math.isfinite(value) for highest, _ in peaks.values() for value in highest):
        raise ValueError("these are no daily peaks: one is not finite")
    return Peaks(peaks)


@dataclass(frozen=True, slots=True)
class Trend:
    """Parallel lines through daily peaks.

    slope: peak per day
    scatter: standard deviation of days about their line, with `freedom` degrees of freedom
    spread: Σ(xᵢ − x̄)² in days²
    cycle: 7, or 1 for a single line
    centres: {day of the cycle: (number of days, their mean day, their mean peak)}
    """

    slope: float
    scatter: float
    freedom: int
    spread: float
    cycle: int
    centres: Mapping[int, tuple[int, float, float]]

    @property
    def level(self) -> float:
        """Confidence level of all intervals (two-sided)."""
        return LEVEL_BY_WEEKDAY if self.cycle == WEEK else LEVEL_SINGLE_LINE

    @property
    def margin(self) -> float:
        """Half-width of the slope's confidence interval."""
        return student_quantile(self.level, self.freedom) * self.scatter / math.sqrt(self.spread)

    def at(self, day: int) -> tuple[float, float, float]:
        """(lower, line, upper): expected peak of a day with its prediction interval."""
        count, mean_day, mean_peak = self.centres[day % self.cycle]
        line = mean_peak + self.slope * (day - mean_day)
        factor = math.sqrt(1 + 1 / count + (day - mean_day) ** 2 / self.spread)
        half_width = student_quantile(self.level, self.freedom) * self.scatter * factor
        return line - half_width, line, line + half_width


def trend(peaks: Mapping[int, float]) -> Trend:
    """Fit lines of one slope to {day: peak}, by day of the week if each occurs twice. Raises ValueError for under 3 days."""
    if len(peaks) < 3:
        raise ValueError(f"{len(peaks)} days of peaks: a line and its scatter need 3")
    cycle = WEEK if all(sum(day % WEEK == weekday for day in peaks) >= 2 for weekday in range(WEEK)) else 1
    groups: dict[int, list[tuple[int, float]]] = {}
    for day, peak in peaks.items():
        groups.setdefault(day % cycle, []).append((day, peak))
    centres = {
        day_of_cycle: (len(days), sum(x for x, _ in days) / len(days), sum(y for _, y in days) / len(days))
        for day_of_cycle, days in groups.items()
    }
    centred = [(day - centres[day % cycle][1], peak - centres[day % cycle][2]) for day, peak in peaks.items()]
    spread = sum(x * x for x, _ in centred)
    slope = sum(x * y for x, y in centred) / spread
    freedom = len(centred) - len(groups) - 1
    scatter = math.sqrt(sum((y - slope * x) ** 2 for x, y in centred) / freedom)
    return Trend(slope, scatter, freedom, spread, cycle, centres)


class Forecast(NamedTuple):
    """First days (begin in UTC, Unix seconds) whose peak reaches the capacity; None without such a day, or without a forecast.

    earliest_s: upper limit of the peaks against the lower bound of the capacity
    estimate_s: fitted line against the estimated capacity; set only if `earliest_s` is
    latest_s: lower limit of the peaks against the upper bound of the capacity; set only if `estimate_s` is
    """

    earliest_s: float | None = None
    estimate_s: float | None = None
    latest_s: float | None = None


def forecast(peaks: Mapping[int, float], capacity: tuple[float, float, float], unix_s: float) -> Forecast:
    """Forecast the day on which the daily peak reaches the capacity.

    peaks: {day since 1970: peak}; capacity: (lower, estimate, upper) in the unit of the peaks
    No forecast with fewer than MIN_DAYS days, or if the slope's interval includes 0. The horizon counts from the last
    peak: old peaks reach less far.
    """
    if len(peaks) < MIN_DAYS:
        return Forecast()
    line = trend(peaks)
    if line.slope <= line.margin:
        return Forecast()
    last = max(peaks)
    horizon = min(MAX_HORIZON_DAYS, 2 * (last - min(peaks) + 1))
    lower, estimate, upper = capacity
    first_s: dict[str, float] = {}
    for day in range(max(last + 1, int(unix_s) // DAY_S), last + horizon + 1):
        low, expected, high = line.at(day)
        is_reached = {"earliest": high >= lower, "estimate": expected >= estimate, "latest": low >= upper}
        for bound in (bound for bound, reached in is_reached.items() if reached):
            first_s.setdefault(bound, float(day * DAY_S))
    return Forecast(first_s.get("earliest"), first_s.get("estimate"), first_s.get("latest"))
