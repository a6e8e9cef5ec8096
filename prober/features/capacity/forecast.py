"""Forecast of when demand reaches capacity: a straight line through daily peaks, with intervals.

Ordinary least squares and its interval for one more observation, at x beside n points with mean x̄ and scatter s:
ŷ ± t·s·√(1 + 1/n + (x − x̄)²/Σ(xᵢ − x̄)²) (Montgomery, Peck, Vining, "Introduction to Linear Regression Analysis", 2.5). From two
weeks on each day of the week has a line of its own, all with one slope: a quiet weekend is then no fall and a Monday no growth.
What is assumed: days scatter independently and alike about the line, and what grew goes on as it did. Neither is sure, so it
looks no further ahead than twice what was seen, and never beyond 30 days. Where high days follow high days (correlation 0.5),
10% of courses without growth are taken for growing, in place of 2.5%; few of them reach a capacity that is not near.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

DAY_S, HOUR_S = 86_400, 3600
MAX_DAYS = 35  # of peaks: five weeks, since growth over longer times is rarely linear
MIN_SEEN_HOURS = 20  # of a day, for its peak to count: a partly seen day would look like growth
MIN_DAYS = 7  # with a peak, for a forecast
MAX_HORIZON_DAYS = 30
WEEK = 7
LEVEL = 0.95  # of the intervals by days of the week
LEVEL_ONE = 0.99  # of those of a single line: the step from a weekend to a working week has t = 2.9 over 7 days, 0.965
Why = Literal["foreseen", "beyond", "few_days", "no_growth"]


@dataclass(slots=True)
class Peaks:
    """Highest demand of each UTC day. days: {days since 1970: (highest demand, bit mask of the hours with data)}"""

    days: dict[int, tuple[float, int]] = field(default_factory=dict)

    def take(self, unix_s: float, demand_per_s: float) -> None:
        """Add a demand value, in the unit of the capacity."""
        day, second = divmod(int(unix_s), DAY_S)
        highest, hours = self.days.get(day, (0.0, 0))
        self.days[day] = max(highest, demand_per_s), hours | 1 << second // HOUR_S
        while len(self.days) > MAX_DAYS + 1:  # and the day that is not over
            del self.days[min(self.days)]

    def whole(self, unix_s: float) -> dict[int, float]:
        """{days since 1970: peak} of complete days with enough data that are not too old."""
        today = int(unix_s) // DAY_S
        return {
            day: highest
            for day, (highest, hours) in sorted(self.days.items())
            if today - MAX_DAYS <= day < today and hours.bit_count() >= MIN_SEEN_HOURS
        }

    def rows(self) -> list[list[float]]:
        """Rows for JSON; `peaks_of` reads them."""
        return [[day, highest, hours] for day, (highest, hours) in sorted(self.days.items())]


def peaks_of(rows: Iterable[Iterable[float]]) -> Peaks:
    """Peaks from the result of `rows`. Raises ValueError."""
    try:
        return Peaks({int(day): (float(highest), int(hours)) for day, highest, hours in rows})
    except TypeError as problem:
        raise ValueError(f"these are no daily peaks: {problem}") from None


@dataclass(frozen=True, slots=True)
class Trend:
    """Parallel lines through daily peaks.

    slope: peak per day; scatter: of days about their line, with `freedom` degrees of freedom; spread: Σ(xᵢ − x̄)² in days²
    centres: {place in the cycle: (days, their mean day, their mean peak)}; cycle: 7, or 1 for a single line
    """

    slope: float
    scatter: float
    freedom: int
    spread: float
    cycle: int
    centres: Mapping[int, tuple[int, float, float]]

    @property
    def level(self) -> float:
        """Of all intervals, two-sided."""
        return LEVEL if self.cycle == WEEK else LEVEL_ONE

    @property
    def margin(self) -> float:
        """Half of the slope's interval."""
        return student(self.level, self.freedom) * self.scatter / math.sqrt(self.spread)

    def at(self, day: int) -> tuple[float, float, float]:
        """(lower, line, upper): what the peak of a day is expected to be, and the interval it is to fall into."""
        count, middle, peak = self.centres[day % self.cycle]
        line = peak + self.slope * (day - middle)
        wide = math.sqrt(1 + 1 / count + (day - middle) ** 2 / self.spread)
        half = student(self.level, self.freedom) * self.scatter * wide
        return line - half, line, line + half


def trend(peaks: Mapping[int, float]) -> Trend:
    """Lines of one slope through {day: peak}, by day of the week if each was seen twice. Raises ValueError for under 3 days."""
    if len(peaks) < 3:
        raise ValueError(f"{len(peaks)} days of peaks: a line and its scatter need 3")
    cycle = WEEK if all(sum(day % WEEK == place for day in peaks) >= 2 for place in range(WEEK)) else 1
    groups: dict[int, list[tuple[int, float]]] = {}
    for day, peak in peaks.items():
        groups.setdefault(day % cycle, []).append((day, peak))
    centres = {
        place: (len(days), sum(x for x, _ in days) / len(days), sum(y for _, y in days) / len(days))
        for place, days in groups.items()
    }
    off = [(day - centres[day % cycle][1], peak - centres[day % cycle][2]) for day, peak in peaks.items()]
    spread = sum(x * x for x, _ in off)
    slope = sum(x * y for x, y in off) / spread
    freedom = len(off) - len(groups) - 1
    scatter = math.sqrt(sum((y - slope * x) ** 2 for x, y in off) / freedom)
    return Trend(slope, scatter, freedom, spread, cycle, centres)


@dataclass(frozen=True, slots=True)
class Forecast:
    """First days (their beginning by UTC, Unix seconds) whose peak is not below the capacity; None: not within the horizon.

    earliest: the peaks' upper limit against the capacity's lower bound; estimate: the line against the estimate; latest: the
    lower limit against the upper bound. Where a later one is given, so are those before it.
    why: foreseen, at least the earliest; beyond, none of them; few_days or no_growth, and so nothing can be said
    """

    why: Why
    earliest_s: float | None = None
    estimate_s: float | None = None
    latest_s: float | None = None


def forecast(peaks: Mapping[int, float], capacity: tuple[float, float, float], unix_s: float) -> Forecast:
    """When {day since 1970: peak} reaches a capacity (lower, estimate, upper) of the same unit, as seen from `unix_s`.

    Nothing is said from fewer than 7 days, nor where a slope of 0 or less is in the slope's interval. The horizon is counted
    from the last peak: old peaks see less far.
    """
    if len(peaks) < MIN_DAYS:
        return Forecast("few_days")
    found = trend(peaks)
    if found.slope <= found.margin:
        return Forecast("no_growth")
    last = max(peaks)
    horizon = min(MAX_HORIZON_DAYS, 2 * (last - min(peaks) + 1))
    lower, estimate, upper = capacity
    first: dict[str, float] = {}
    for day in range(max(last + 1, int(unix_s) // DAY_S), last + horizon + 1):
        low, line, high = found.at(day)
        reached = {"earliest": high >= lower, "estimate": line >= estimate, "latest": low >= upper}
        for bound in (bound for bound, held in reached.items() if held):
            first.setdefault(bound, float(day * DAY_S))
    times = (first.get(bound) for bound in ("earliest", "estimate", "latest"))
    return Forecast("foreseen" if first else "beyond", *times)


def student(level: float, freedom: int) -> float:
    """t with |T| ≤ t in `level` of all cases, of Student's distribution with whole degrees of freedom, to 1e-12 of its angle.

    The finite series for θ = atan(t/√ν) (Abramowitz, Stegun, "Handbook of Mathematical Functions", 26.7.3 and 26.7.4), halved.
    """
    low, high = 0.0, math.pi / 2
    while high - low > 1e-12:
        angle = (low + high) / 2
        low, high = (angle, high) if _within(angle, freedom) < level else (low, angle)
    return math.tan(low) * math.sqrt(freedom)


def _within(angle: float, freedom: int) -> float:
    """The chance of |T| ≤ √ν·tan(angle)."""
    odd = freedom % 2
    cosine, total = math.cos(angle), 0.0
    term = cosine if odd else 1.0
    for step in range(2 + odd, freedom + 2, 2):
        total += term
        term *= cosine**2 * (step - 1) / step
    total *= math.sin(angle)
    return 2 / math.pi * (angle + total) if odd else total
