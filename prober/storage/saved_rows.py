"""Rows that an earlier process saved. A row that cannot be read is logged and set aside; it prevents neither the start nor other rows.

Times in the rows are robust against changes of the wall clock.
"""

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from prober.storage.store import UNREADABLE_SUFFIX, Store

T = TypeVar("T")
log = logging.getLogger(__name__)


class SavedRows:
    """Rows of one kind, by key. set_aside: moves the unreadable row with a key to where nothing overwrites it"""

    def __init__(
        self, rows: Mapping[str, bytes] = MappingProxyType({}), set_aside: Callable[[str], None] = lambda _: None
    ) -> None:
        self._rows, self._set_aside = dict(rows), set_aside

    @classmethod
    def of(cls, store: Store, kind: str, since_unix_s: float) -> "SavedRows":
        """Load the rows of a kind. Rows saved before `since_unix_s` are deleted, also those set aside. Raises sqlite3.Error."""
        store.load(kind + UNREADABLE_SUFFIX, since_unix_s)
        return cls(store.load(kind, since_unix_s), partial(store.set_aside, kind))

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._rows))

    def get(self, key: str, read: Callable[[bytes], T], consequence: str) -> T | None:
        """Return `read(row)`; None if there is no row, or if `read` raises. The latter is logged with its reason and `consequence`."""
        data = self._rows.get(key)
        if data is None:
            return None
        try:
            return read(data)
        except Exception as problem:  # whatever is in the row
            del self._rows[key]
            log.error("%s: %s", consequence, problem if isinstance(problem, ValueError) else repr(problem))
            try:
                self._set_aside(key)
            except sqlite3.Error as refusal:
                log.error("the unreadable row %r cannot be set aside: %s", key, refusal)
        return None

    def pop(self, key: str, read: Callable[[bytes], T], consequence: str) -> T | None:
        """Like `get`, and forget the row."""
        value = self.get(key, read, consequence)
        self._rows.pop(key, None)
        return value


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time: boot id of the machine (empty if unknown), monotonic clock and wall clock.

    Within one boot of the machine, ages are differences of the monotonic clock; otherwise of the wall clock, and a moment in the future
    counts as now.
    """

    boot: str
    monotonic_ns: int
    unix_s: float

    def age_ns(self, now: "Moment", clock_error_s: float = 0.0) -> int:
        """Nanoseconds from this moment to `now`, at least 0. clock_error_s: subtracted from an age by the wall clock"""
        if self.boot and self.boot == now.boot and self.monotonic_ns <= now.monotonic_ns:
            return now.monotonic_ns - self.monotonic_ns
        return max(0, round((now.unix_s - self.unix_s - clock_error_s) * 1e9))

    def as_json(self) -> dict[str, Any]:
        """A value for JSON that `moment_of` reads."""
        return asdict(self)


def moment_of(row: Any) -> Moment:
    """The moment from the result of `as_json`. Raises ValueError, KeyError, TypeError, OverflowError."""
    saved = Moment(str(row["boot"]), int(row["monotonic_ns"]), float(row["unix_s"]))
    round(saved.unix_s * 1e9)  # raises for what is not finite
    return saved


def moment(monotonic_ns: int, unix_s: float) -> Moment:
    """The moment with these clock readings, in the present boot of this machine."""
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
