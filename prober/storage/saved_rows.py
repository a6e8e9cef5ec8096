"""Rows saved by an earlier process. A row that cannot be read is logged and set aside; it prevents neither the start nor other rows.

Ages computed from the rows are robust against changes of the wall clock.
"""

import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from prober.storage.store import UNREADABLE_SUFFIX, Store

T = TypeVar("T")
MAX_PUT_BYTES = 16 << 20  # limit for rows of removed targets; beyond it the oldest are dropped
log = logging.getLogger(__name__)


class SavedRows:
    """Rows of one kind by key. set_aside: moves the unreadable row of a key to a place where it is not overwritten"""

    def __init__(
        self, rows: Mapping[str, bytes] = MappingProxyType({}), set_aside: Callable[[str], None] = lambda _: None
    ) -> None:
        self._rows, self._set_aside = dict(rows), set_aside
        self._put: dict[str, int] = {}  # size of each row that this process added
        self._put_bytes = 0

    @classmethod
    def of(cls, store: Store, kind: str, since_unix_s: float) -> "SavedRows":
        """Load the rows of a kind. Rows saved before `since_unix_s` are deleted, including those set aside. Raises sqlite3.Error."""
        store.load(kind + UNREADABLE_SUFFIX, since_unix_s)
        return cls(store.load(kind, since_unix_s), partial(store.set_aside, kind))

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._rows))

    def put(self, rows: Iterable[tuple[str, bytes]]) -> None:
        """Add the rows of a target that is being removed, in case it returns, such as with another configuration."""
        for key, data in rows:
            self._remove(key)
            self._rows[key], self._put[key] = data, len(data)
            self._put_bytes += len(data)
        while self._put_bytes > MAX_PUT_BYTES:
            self._remove(next(iter(self._put)))

    def _remove(self, key: str) -> bytes | None:
        self._put_bytes -= self._put.pop(key, 0)
        return self._rows.pop(key, None)

    def pop(self, key: str, read: Callable[[bytes], T], consequence: str) -> T | None:
        """Remove a row and return `read(row)`; None without such a row, or if `read` raises, which is logged with `consequence`."""
        data = self._remove(key)
        if data is None:
            return None
        try:
            return read(data)
        except Exception as problem:  # a damaged row can raise anything
            log.error("%s: %s", consequence, problem if isinstance(problem, ValueError) else repr(problem))
            try:
                self._set_aside(key)
            except sqlite3.Error as refusal:
                log.error("the unreadable row %r cannot be set aside: %s", key, refusal)
        return None


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time: boot id of the machine (empty if unknown), monotonic clock and wall clock.

    Within one boot of the machine, ages are differences of the monotonic clock, otherwise of the wall clock. A moment in the future
    has age 0.
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
        """The moment as a JSON value that `moment_of` reads."""
        return asdict(self)


def moment_of(row: Any) -> Moment:
    """Read a moment from the result of `as_json`. Raises ValueError, KeyError, TypeError, OverflowError."""
    saved = Moment(str(row["boot"]), int(row["monotonic_ns"]), float(row["unix_s"]))
    round(saved.unix_s * 1e9)  # raises if the time is not finite
    return saved


def moment(monotonic_ns: int, unix_s: float) -> Moment:
    """The moment of these clock readings, in the present boot of this machine."""
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
