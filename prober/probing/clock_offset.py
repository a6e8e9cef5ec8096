"""The offset between the monotonic clocks of two machines, by exchange, with a bound of its error."""

from collections import deque
from dataclasses import dataclass, replace

from prober.measure.result import ProbeResult

MAX_DRIFT_RATIO = 1e-3  # between two clocks: the kernel slews each by 500 ppm at most
EXCHANGES = 64


@dataclass(frozen=True, slots=True)
class Offset:
    """Offset of another clock. offset_ns: that clock minus this one; error_ns: bound of its error in both directions"""

    offset_ns: int
    error_ns: int


class ClockOffset:
    """The offset of another clock, from the latest exchanges.

    The other clock was read between the sending of a question and the receipt of its answer, so the middle of the two is off by half
    of the time between them at most, however unequal the two ways are. An exchange grows less certain as the clocks drift apart.
    """

    def __init__(self) -> None:
        self._exchanges: deque[tuple[int, Offset]] = deque(maxlen=EXCHANGES)

    def exchanged(self, asked_ns: int, other_ns: int, answered_ns: int) -> None:
        """Add an exchange. asked_ns, answered_ns: of this clock; other_ns: of the other one, read between them."""
        middle_ns = (asked_ns + answered_ns) // 2
        self._exchanges.append((middle_ns, Offset(other_ns - middle_ns, (answered_ns - asked_ns + 1) // 2)))

    def at(self, now_ns: int) -> Offset:
        """The offset with the smallest error at this time. Needs an exchange."""
        return min((_aged(offset, now_ns - at_ns) for at_ns, offset in self._exchanges), key=lambda aged: aged.error_ns)


def _aged(offset: Offset, age_ns: int) -> Offset:
    return Offset(offset.offset_ns, offset.error_ns + round(max(0, age_ns) * MAX_DRIFT_RATIO))


def checked_clock(result: ProbeResult, error_s: float, max_send_lag_s: float, node: str) -> ProbeResult:
    """The result of a request; late if it may have been sent later than `max_send_lag` by the error of the node's clock."""
    lag_s = result.timeline.send_lag_s
    if lag_s is None or result.timeline.is_late or lag_s + error_s <= max_send_lag_s:
        return result
    detail = (
        f"sent {lag_s * 1e3:.1f} ms late by the clock of node {node}, which is known to {error_s * 1e3:.1f} ms "
        f"(max_send_lag {max_send_lag_s * 1e3:g} ms)"
    )
    return replace(result, detail=detail, timeline=replace(result.timeline, is_late=True))
