"""Time since an event in another process, robust against changes of the wall clock.

Within one boot of the machine the monotonic clock gives it. Otherwise only the wall clocks can, and a moment in their
future counts as now.
"""

import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment: boot id of the machine (empty if unknown), monotonic clock and wall clock."""

    boot: str
    monotonic_ns: int
    unix_s: float

    def age_ns(self, now: "Moment", clock_error_s: float = 0.0) -> int:
        """Nanoseconds from this moment to `now`, never below 0. clock_error_s: subtracted if the age is from wall clocks."""
        if self.boot and self.boot == now.boot and self.monotonic_ns <= now.monotonic_ns:
            return now.monotonic_ns - self.monotonic_ns
        return max(0, round((now.unix_s - self.unix_s - clock_error_s) * 1e9))

    def as_json(self) -> dict[str, Any]:
        """Value for JSON, which `moment_of` reads."""
        return asdict(self)


def moment_of(row: Any) -> Moment:
    """The moment from the result of `as_json`. Raises ValueError, KeyError, TypeError, OverflowError."""
    saved = Moment(str(row["boot"]), int(row["monotonic_ns"]), float(row["unix_s"]))
    round(saved.unix_s * 1e9)  # raises for what is not finite
    return saved


def moment(monotonic_ns: int, unix_s: float) -> Moment:
    """The moment at these times of this machine's clocks."""
    return Moment(_boot(), monotonic_ns, unix_s)


def moment_now() -> Moment:
    """The present moment."""
    return moment(time.monotonic_ns(), time.time())


@cache
def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
