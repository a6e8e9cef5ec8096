"""Rows that an earlier process saved. A row that cannot be read is logged and set aside; it stops no start and no other row."""

import logging
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import TypeVar

from prober.storage.store import UNREADABLE_SUFFIX, Store

T = TypeVar("T")
log = logging.getLogger(__name__)


class SavedRows:
    """Rows of one kind, by key. set_aside: keeps a row that cannot be read where nothing overwrites it."""

    def __init__(
        self, rows: Mapping[str, bytes] = MappingProxyType({}), set_aside: Callable[[str], None] = lambda _: None
    ) -> None:
        self._rows, self._set_aside = dict(rows), set_aside

    @classmethod
    def of(cls, store: Store, kind: str, since_unix_s: float) -> "SavedRows":
        """The rows of a store; older ones are deleted, and so are older ones that were set aside. Raises sqlite3.Error."""
        store.load(kind + UNREADABLE_SUFFIX, since_unix_s)
        return cls(store.load(kind, since_unix_s), partial(store.set_aside, kind))

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._rows))

    def get(self, key: str, read: Callable[[bytes], T], consequence: str) -> T | None:
        """The row as `read` returns it; None if there is none, or if `read` raises: then `consequence` is logged with the reason."""
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
        """As `get`, and forget the row."""
        value = self.get(key, read, consequence)
        self._rows.pop(key, None)
        return value
