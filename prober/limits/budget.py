"""What probing may cost in any 24 hours. Tokens are reserved before a request leaves and settled when it has ended."""

from collections import deque
from dataclasses import dataclass, field

HOUR_NS = 3600 * 10**9
HOURS = 24


@dataclass(slots=True)
class Budget:
    """A limit over a sliding day, kept as whole hours: the present one and the 24 before it, so never more than the limit.

    Amounts are tokens or dollars; `limit` has the same unit. A restart begins anew, with the whole limit.
    """

    limit: float
    _hours: deque[tuple[int, float]] = field(default_factory=deque)

    def reserve(self, amount: float, now_ns: int) -> bool:
        """Set `amount` aside; False, and nothing set aside, if it does not fit."""
        if self.spent(now_ns) + amount > self.limit:
            return False
        self._add(amount, now_ns)
        return True

    def settle(self, reserved: float, used: float, now_ns: int) -> None:
        """The request that had `reserved` took `used`; the difference is given back (or taken)."""
        self._add(used - reserved, now_ns)

    def spent(self, now_ns: int) -> float:
        """Used and reserved in the last 24 hours and the part of the hour before them."""
        hour = now_ns // HOUR_NS
        while self._hours and self._hours[0][0] < hour - HOURS:
            self._hours.popleft()
        return sum(amount for _, amount in self._hours)

    def remaining_ratio(self, now_ns: int) -> float:
        """1 untouched, 0 used up."""
        return max(0.0, 1.0 - self.spent(now_ns) / self.limit)

    def _add(self, amount: float, now_ns: int) -> None:
        hour = now_ns // HOUR_NS
        if self._hours and self._hours[-1][0] == hour:
            amount += self._hours.pop()[1]
        self._hours.append((hour, amount))
