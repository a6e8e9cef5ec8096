"""What probing may cost in any 24 hours. Tokens are reserved before a request leaves and settled when it has ended.

A restart must not begin the day anew, and a process that is killed says nothing more: so what is kept for the next one is a
`Mark`, made before the spending reaches it. It may hold more than was spent, by what it is ahead, and never less.
"""

import math
from dataclasses import dataclass, field, replace

HOUR_NS = 3600 * 10**9
HOURS = 24
SIGMAS = 4.0  # above the mean of what is taken at random times
AHEAD = 0.001  # of the limit: a mark every minute or so, and a kill costs a minute and a half of the day


@dataclass(frozen=True, slots=True)
class Need:
    """What requests at random times take of a budget: the mean of a second, and the variance of a second."""

    per_s: float = 0.0
    variance_per_s: float = 0.0

    def within(self, seconds: float) -> float:
        """The most that they take in so many seconds: SIGMAS standard deviations above the mean."""
        return self.per_s * seconds + SIGMAS * math.sqrt(self.variance_per_s * seconds)

    def scaled(self, factor: float) -> "Need":
        """Where each request takes so many times as much."""
        return Need(self.per_s * factor, self.variance_per_s * factor**2)


@dataclass(frozen=True, slots=True)
class Mark:
    """To be kept: amounts by hour of a monotonic clock at `at_ns`, and how much more may be spent before the next mark is.

    taken: all that was ever set aside, as far as the mark knows
    """

    at_ns: int
    hours: dict[int, float]
    ahead: float
    taken: float = 0.0


@dataclass(slots=True)
class Budget:
    """A limit over a sliding day, kept as whole hours: the present one and the 24 before it, so never more than the limit.

    Amounts are tokens or dollars; `limit` has the same unit. typical: what a request takes, at the most so far.
    """

    limit: float
    typical: float = 0.0
    _hours: dict[int, float] = field(default_factory=dict)
    _taken: float = 0.0  # all that was ever set aside, or used beyond that: only grows
    _covered: float = 0.0  # how large `_taken` may be by the marks that are kept

    def reserve(self, amount: float, now_ns: int, others: Need | None = None) -> bool:
        """Set `amount` aside; False, and nothing set aside, if it does not fit, or leaves too little for `others`."""
        if self.spent(now_ns) + amount > self.limit or (others is not None and amount > self.spare(now_ns, others)):
            return False
        self._add(amount, now_ns)
        return True

    def settle(self, reserved: float, used: float, reserved_ns: int) -> None:
        """The request that had `reserved` at `reserved_ns` took `used`; the difference is given back (or taken) in that hour.

        Given back in a later hour, it would outlive what it is taken off, and the limit could be passed by as much.
        """
        self._add(used - reserved, reserved_ns)

    def spent(self, now_ns: int) -> float:
        """Used and reserved in the last 24 hours and the part of the hour before them."""
        first = now_ns // HOUR_NS - HOURS
        self._hours = {hour: amount for hour, amount in self._hours.items() if hour >= first}
        return sum(self._hours.values())

    def spare(self, now_ns: int, others: Need) -> float:
        """What may be taken now so that `others` fit at any time until it has left the window; below 0 if they do not anyway.

        What was spent before leaves the window hour by hour meanwhile, and makes room for what others take.
        """
        left, most = self.spent(now_ns), 0.0
        present = now_ns // HOUR_NS
        for hour in range(present - HOURS, present + 1):
            until_s = ((hour + HOURS + 1) * HOUR_NS - now_ns) / 1e9  # then this hour leaves the window
            most = max(most, left + others.within(until_s))
            left -= self._hours.get(hour, 0.0)
        return self.limit - most

    def remaining_ratio(self, now_ns: int) -> float:
        """1 untouched, 0 used up."""
        return max(0.0, 1.0 - self.spent(now_ns) / self.limit)

    def limited(self, limit: float) -> "Budget":
        """The same spending under another limit."""
        return replace(self, limit=limit)

    @property
    def ahead(self) -> float:
        """By how much a mark is ahead of what is spent, and so the most that a kill can cost: two requests, or AHEAD of the limit."""
        return max(AHEAD * self.limit, 2 * self.typical)

    @property
    def low(self) -> bool:
        """Half of what the last mark was ahead is spent: it is time for the next one."""
        return self._taken + self.ahead / 2 > self._covered

    @property
    def covered(self) -> bool:
        """All that is spent is in a mark that is kept."""
        return self._taken <= self._covered

    def mark(self, now_ns: int, *, last: bool = False) -> Mark:
        """What to keep now; the `last` one of a process that spends nothing more is exact."""
        self.spent(now_ns)
        return Mark(now_ns, dict(self._hours), 0.0 if last else self.ahead, self._taken)

    def kept(self, mark: Mark) -> None:
        """This mark will be found by whoever comes next."""
        self._covered = max(self._covered, mark.taken + mark.ahead)

    def recall(self, mark: Mark, now_ns: int, age_ns: int) -> None:
        """Add what an earlier process spent; its mark is `age_ns` old by this one's clock.

        What it was ahead may have been spent at any time since, so it counts as spent now. On another clock, whose hours begin
        elsewhere, an amount is put where its hour ended: it counts for up to an hour longer, and never shorter.
        """
        shift, present = now_ns - age_ns - mark.at_ns, now_ns // HOUR_NS
        for hour, amount in mark.hours.items():
            moved = ((hour + 1) * HOUR_NS - 1 + shift) // HOUR_NS if shift else hour
            self._hours[min(moved, present)] = self._hours.get(min(moved, present), 0.0) + amount
        self._hours[present] = self._hours.get(present, 0.0) + mark.ahead

    def _add(self, amount: float, at_ns: int) -> None:
        hour = at_ns // HOUR_NS
        self._hours[hour] = self._hours.get(hour, 0.0) + amount
        self._taken += max(0.0, amount)
        self.typical = max(self.typical, amount)
