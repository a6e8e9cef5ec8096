"""How long ago another process did something, though clocks are set meanwhile.

While the machine is not started anew its monotonic clock tells, whatever becomes of the wall clock. Across machines only the
wall clocks are left, and they may disagree: `WRONG_S` is allowed for, on the side of too short.
"""

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

WRONG_S = 3600.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of some process: its machine's start (empty: not known), its monotonic clock, its wall clock."""

    boot: str
    monotonic_ns: int
    unix_s: float

    def age_ns(self, now: "Moment") -> int:
        """Nanoseconds from here to `now`, at least that many; never below 0."""
        if self.boot and self.boot == now.boot and self.monotonic_ns <= now.monotonic_ns:
            return now.monotonic_ns - self.monotonic_ns
        return max(0, round((now.unix_s - self.unix_s - WRONG_S) * 1e9))


def moment() -> Moment:
    """This one."""
    return Moment(_boot(), time.monotonic_ns(), time.time())


@cache
def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
