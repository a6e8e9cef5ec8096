"""What probing may cost in any 24 hours. Tokens are reserved before a request leaves and settled when it has ended."""

from dataclasses import dataclass, field

HOUR_NS = 3600 * 10**9
HOURS = 24


@dataclass(slots=True)
class Budget:
    """A limit over a sliding day, kept as whole hours: the present one and the 24 before it, so never more than the limit.

    Amounts are tokens or dollars; `limit` has the same unit. A restart begins anew, with the whole limit.
    """

    limit: float
    _hours: dict[int, float] = field(default_factory=dict)

    def reserve(self, amount: float, now_ns: int) -> bool:
        """Set `amount` aside; False, and nothing set aside, if it does not fit."""
        if self.spent(now_ns) + amount > self.limit:
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

    def remaining_ratio(self, now_ns: int) -> float:
        """1 untouched, 0 used up."""
        return max(0.0, 1.0 - self.spent(now_ns) / self.limit)

    def _add(self, amount: float, at_ns: int) -> None:
        hour = at_ns // HOUR_NS
        self._hours[hour] = self._hours.get(hour, 0.0) + amount
