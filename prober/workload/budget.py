"""Budget of tokens or dollars over any 24 hours. Amounts are reserved before a request is sent and settled when it has ended.

The spending must survive a restart, even a kill. Therefore a `Checkpoint` is saved before the spending reaches it: it may contain
more than was spent, by its margin, but never less.
"""

import math
from dataclasses import dataclass, field, replace

HOUR_NS = 3600 * 10**9
WINDOW_HOURS = 24
DEMAND_SIGMAS = 4.0  # above the mean spending of requests at random times
# Of the limit: a checkpoint every minute or so; a kill costs a minute and a half of the day.
CHECKPOINT_MARGIN_RATIO = 0.001


@dataclass(frozen=True, slots=True)
class BudgetDemand:
    """Spending of requests at random times: mean and variance of the amount per second."""

    per_s: float = 0.0
    variance_per_s: float = 0.0

    def max_over(self, seconds: float) -> float:
        """Upper bound of the spending in `seconds`: DEMAND_SIGMAS standard deviations above the mean."""
        return self.per_s * seconds + DEMAND_SIGMAS * math.sqrt(self.variance_per_s * seconds)

    def scaled(self, factor: float) -> "BudgetDemand":
        """Returns the demand if each request costs `factor` times as much."""
        return BudgetDemand(self.per_s * factor, self.variance_per_s * factor**2)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State of a budget to save: amounts that a later process must count as spent.

    at_ns: time of the checkpoint on the monotonic clock
    hours: amounts by hour of that clock
    margin: amount that may be spent after this checkpoint before the next one is needed
    reserved_total: sum of all reservations, and of use beyond them, up to this checkpoint
    """

    at_ns: int
    hours: dict[int, float]
    margin: float
    reserved_total: float = 0.0


@dataclass(slots=True)
class Budget:
    """A limit over a sliding day, in whole hours: the current one and the 24 before it, so that no 24 hours exceed the limit.

    limit: tokens or dollars, the unit of all amounts
    typical: the largest amount that a request has reserved so far
    """

    limit: float
    typical: float = 0.0
    _hours: dict[int, float] = field(default_factory=dict)
    _reserved_total: float = 0.0  # all that was reserved, or used beyond the reservation; never decreases
    _durable_total: float = 0.0  # `_reserved_total` that the saved checkpoints allow

    def reserve(self, amount: float, now_ns: int, other_demand: BudgetDemand | None = None) -> bool:
        """Reserve `amount`. Returns False and reserves nothing if it does not fit or leaves too little for `other_demand`."""
        if self.spent(now_ns) + amount > self.limit or (
            other_demand is not None and amount > self.available(now_ns, other_demand)
        ):
            return False
        self._add(amount, now_ns)
        return True

    def settle(self, reserved: float, used: float, reserved_ns: int) -> None:
        """Replace `reserved`, the reservation made at `reserved_ns`, by the amount `used`, in the hour of the reservation.

        A refund in a later hour would stay in the window longer than the reservation, and the limit could be exceeded by it.
        """
        self._add(used - reserved, reserved_ns)

    def spent(self, now_ns: int) -> float:
        """Amount used and reserved in the current hour and the 24 hours before it."""
        first = now_ns // HOUR_NS - WINDOW_HOURS
        self._hours = {hour: amount for hour, amount in self._hours.items() if hour >= first}
        return sum(self._hours.values())

    def available(self, now_ns: int, other_demand: BudgetDemand) -> float:
        """Amount that can be spent now so that `other_demand` still fits until that amount leaves the window. Negative: it does not
        fit.

        Until then, earlier spending leaves the window hour by hour and makes room for the other demand.
        """
        left, most = self.spent(now_ns), 0.0
        present = now_ns // HOUR_NS
        for hour in range(present - WINDOW_HOURS, present + 1):
            until_s = ((hour + WINDOW_HOURS + 1) * HOUR_NS - now_ns) / 1e9  # then this hour leaves the window
            most = max(most, left + other_demand.max_over(until_s))
            left -= self._hours.get(hour, 0.0)
        return self.limit - most

    def remaining_ratio(self, now_ns: int) -> float:
        """Unspent share of the limit, 0 to 1."""
        return max(0.0, 1.0 - self.spent(now_ns) / self.limit)

    def with_limit(self, limit: float) -> "Budget":
        """Returns a budget with the same spending and another limit."""
        return replace(self, limit=limit)

    @property
    def margin(self) -> float:
        """Margin of a checkpoint: the larger of two requests and CHECKPOINT_MARGIN_RATIO of the limit. A kill wastes at most this."""
        return max(CHECKPOINT_MARGIN_RATIO * self.limit, 2 * self.typical)

    @property
    def needs_checkpoint(self) -> bool:
        """True if half of the last checkpoint's margin is spent."""
        return self._reserved_total + self.margin / 2 > self._durable_total

    @property
    def is_durable(self) -> bool:
        """True if a saved checkpoint covers all spending."""
        return self._reserved_total <= self._durable_total

    def checkpoint(self, now_ns: int, *, final: bool = False) -> Checkpoint:
        """Returns the state to save. The `final` checkpoint of a process that spends nothing more has no margin."""
        self.spent(now_ns)
        return Checkpoint(now_ns, dict(self._hours), 0.0 if final else self.margin, self._reserved_total)

    def checkpoint_saved(self, checkpoint: Checkpoint) -> None:
        """Record that `checkpoint` was saved."""
        self._durable_total = max(self._durable_total, checkpoint.reserved_total + checkpoint.margin)

    def restore(self, checkpoint: Checkpoint, now_ns: int, age_ns: int) -> None:
        """Add the spending of an earlier process, whose checkpoint is `age_ns` old.

        The margin may have been spent at any time since, so it counts as spent now. After a reboot the hours of the monotonic clock
        differ: an amount is placed at the end of its hour, so that it counts up to an hour longer but never shorter.
        """
        shift, present = now_ns - age_ns - checkpoint.at_ns, now_ns // HOUR_NS
        for hour, amount in checkpoint.hours.items():
            moved = ((hour + 1) * HOUR_NS - 1 + shift) // HOUR_NS if shift else hour
            self._hours[min(moved, present)] = self._hours.get(min(moved, present), 0.0) + amount
        self._hours[present] = self._hours.get(present, 0.0) + checkpoint.margin

    def _add(self, amount: float, at_ns: int) -> None:
        hour = at_ns // HOUR_NS
        self._hours[hour] = self._hours.get(hour, 0.0) + amount
        self._reserved_total += max(0.0, amount)
        self.typical = max(self.typical, amount)
