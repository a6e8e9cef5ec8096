"""Budget of tokens or dollars over any 24 hours. Amounts are reserved before a request is sent and settled when it has ended."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

HOUR_NS = 3600 * 10**9
WINDOW_HOURS = 24
DEMAND_SIGMAS = 4.0  # above the mean spending of requests at random times


@dataclass(frozen=True, slots=True)
class BudgetDemand:
    """What requests at random times spend: mean and variance of the amount per second."""

    per_s: float = 0.0
    variance_per_s: float = 0.0

    def max_over(self, seconds: float) -> float:
        """Upper bound for `seconds`: DEMAND_SIGMAS standard deviations above the mean."""
        return self.per_s * seconds + DEMAND_SIGMAS * math.sqrt(self.variance_per_s * seconds)

    def scaled(self, factor: float) -> "BudgetDemand":
        """The demand if each request costs `factor` times as much."""
        return BudgetDemand(self.per_s * factor, self.variance_per_s * factor**2)


@dataclass(slots=True)
class Budget:
    """A limit for any 24 hours, counted in whole hours: the current hour and the 24 before it together stay within it.

    limit: tokens or dollars, the unit of all amounts
    hours: amounts by hour of the monotonic clock
    """

    limit: float
    hours: dict[int, float] = field(default_factory=dict)

    def reserve(self, amount: float, now_ns: int, other_demand: BudgetDemand | None = None) -> bool:
        """Reserve `amount`. Returns False, without a reservation, if it does not fit or leaves too little for `other_demand`."""
        if self.spent(now_ns) + amount > self.limit or (
            other_demand is not None and amount > self.available(now_ns, other_demand)
        ):
            return False
        self._add(amount, now_ns)
        return True

    def settle(self, reserved: float, used: float, reserved_ns: int) -> None:
        """Replace the reservation made at `reserved_ns` by the amount `used`, in the hour of the reservation.

        A refund in a later hour would outlast the reservation in the window, and let the spending exceed the limit.
        """
        self._add(used - reserved, reserved_ns)

    def spent(self, now_ns: int) -> float:
        """Amount used and reserved in the current hour and the 24 hours before it."""
        first = now_ns // HOUR_NS - WINDOW_HOURS
        self.hours = {hour: amount for hour, amount in self.hours.items() if hour >= first}
        return sum(self.hours.values())

    def available(self, now_ns: int, other_demand: BudgetDemand) -> float:
        """Amount that can be spent now and still leaves enough for `other_demand` until it leaves the window itself; negative if the
        demand does not fit.

        Meanwhile earlier spending leaves the window hour by hour and makes room for that demand.
        """
        left, most = self.spent(now_ns), 0.0
        present = now_ns // HOUR_NS
        for hour in range(present - WINDOW_HOURS, present + 1):
            until_s = ((hour + WINDOW_HOURS + 1) * HOUR_NS - now_ns) / 1e9  # when this hour leaves the window
            most = max(most, left + other_demand.max_over(until_s))
            left -= self.hours.get(hour, 0.0)
        return self.limit - most

    def remaining_ratio(self, now_ns: int) -> float:
        """Unspent share of the limit, 0 to 1."""
        return max(0.0, 1.0 - self.spent(now_ns) / self.limit)

    def restore(self, hours: Mapping[int, float], shift_ns: int, now_ns: int) -> None:
        """Add the spending of an earlier process, whose clock was `shift_ns` behind.

        After a reboot the hours of the monotonic clock differ: each amount counts from the end of its hour, so it counts up to an hour
        longer but never shorter.
        """
        for hour, amount in hours.items():
            moved = ((hour + 1) * HOUR_NS - 1 + shift_ns) // HOUR_NS if shift_ns else hour
            self._add(amount, min(moved * HOUR_NS, now_ns))

    def _add(self, amount: float, at_ns: int) -> None:
        hour = at_ns // HOUR_NS
        self.hours[hour] = self.hours.get(hour, 0.0) + amount
