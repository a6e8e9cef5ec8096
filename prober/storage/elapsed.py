"""Time since an event in another process, robust against changes of the wall clock.

Within one boot of the machine the monotonic clock is used. Otherwise only wall clocks are left, and they may disagree:
`MAX_CLOCK_ERROR_S` is subtracted, so that the result is rather too short.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

MAX_CLOCK_ERROR_S = 3600.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment: boot id of the machine (empty if unknown), monotonic clock and wall clock."""

    boot: str
    monotonic_ns: int
    unix_s: float

    def age_ns(self, now: "Moment") -> int:
        """Nanoseconds from this moment to `now`: a lower bound across boots or machines, never below 0."""
        if self.boot and self.boot == now.boot and self.monotonic_ns <= now.monotonic_ns:
            return now.monotonic_ns - self.monotonic_ns
        return max(0, round((now.unix_s - self.unix_s - MAX_CLOCK_ERROR_S) * 1e9))


def moment(monotonic_ns: int, unix_s: float) -> Moment:
    """The moment at these times of this machine's clocks."""
    return Moment(_boot(), monotonic_ns, unix_s)


@cache
def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
