"""Stores sweep results without their requests: on disk, read when needed, or only in memory.

Disk access and parsing run in a thread. A row's key is `["target's key", "sweep's id"]`, its value the result's file.
"""

import asyncio
import json
import logging
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence

from prober.results.result import Result
from prober.results.result_file import from_json, to_json
from prober.results.strict_json import Unreadable
from prober.storage.store import UNREADABLE_SUFFIX, Entry, Store

SWEEP = "sweep"  # kind of the rows in the store
MAX_RESULTS = 20  # per target
MAX_BYTES = 32 << 20  # of all results: half of the manifests' volume
MAX_UNREADABLE_AGE_S = 90 * 86_400.0
log = logging.getLogger(__name__)


class SweepStore:
    """The latest MAX_RESULTS results of one target. key: key of the target; archive: results on disk; None: only in memory

    unread: ids of those that are not in memory, all older, latest first
    """

    def __init__(self, archive: "SweepArchive | None", key: str) -> None:
        self._archive, self._key = archive, key
        self._results: dict[str, Result] = {}  # latest first
        self.unread: list[str] = []
        self._reading = asyncio.Lock()

    def latest(self) -> list[Result]:
        """Results in memory, latest first."""
        return list(self._results.values())

    def has(self, identity: str) -> bool:
        """True if a result with this id exists, read or not."""
        return identity in self._results or identity in self.unread

    async def read(self, enough: Callable[[Result], bool] = lambda _: False) -> None:
        """Read results from the store, latest first, until `enough` is true for one."""
        if self._archive is None:
            return
        await self._archive.listed.wait()
        async with self._reading:
            while self.unread and not any(enough(result) for result in self._results.values()):
                identity = self.unread[0]
                result = await asyncio.to_thread(self._archive.result, self._key, identity)
                if identity in self.unread:  # it may have been superseded
                    self.unread.remove(identity)
                    if result is not None:
                        self._results[identity] = result

    async def keep(self, result: Result) -> None:
        """Add a result. Older ones beyond MAX_RESULTS are removed, also from the store."""
        short = result.without_requests()
        if self._archive is not None:
            await asyncio.to_thread(self._archive.save, self._key, short)
        self._results = {short.id: short} | self._results  # shown only once saved
        while len(self._results) > MAX_RESULTS:
            self._results.popitem()
        del self.unread[MAX_RESULTS - len(self._results) :]

    def forget(self) -> None:
        """Forget a removed target's results; they are read again if it returns."""
        if self._archive is not None:
            self.unread = [*self._results, *self.unread]
            self._results.clear()


class SweepArchive:
    """Results of all targets in a store; known once `listed` is set."""

    def __init__(self, store: Store, unix_s: Callable[[], float]) -> None:
        self._store, self._unix_s = store, unix_s
        self._stores: dict[str, SweepStore] = {}
        self._to_read: asyncio.Queue[tuple[str, Callable[[], Awaitable[None]]]] = asyncio.Queue()
        self.listed = asyncio.Event()

    def of(self, key: str) -> SweepStore:
        """The results of the target with this key, as a `SweepStore`."""
        return self._stores.setdefault(key, SweepStore(self, key))

    def read_later(self, name: str, read: Callable[[], Awaitable[None]]) -> None:
        """Schedule `read`, which reads the results of a target. Targets take turns, because others need the disk too."""
        self._to_read.put_nowait((name, read))

    async def run(self) -> None:
        """List the results, remove what was set aside long ago, then serve `read_later`, for ever."""
        await self.index()
        await asyncio.to_thread(self.clean_up)
        while True:
            name, read = await self._to_read.get()
            try:
                await read()
            except Exception:
                log.exception("target=%s: its earlier sweeps are not known; please report this", name)

    async def index(self) -> None:
        """List the results without reading them."""
        try:
            for key, identity in await asyncio.to_thread(self._known):
                self.of(key).unread.append(identity)
        except sqlite3.Error as problem:
            log.error("stored sweeps cannot be listed, and are left alone: %s", problem)
        self.listed.set()

    def _known(self) -> list[tuple[str, str]]:
        """(key, id) of the results, latest first."""
        known = []
        for entry in reversed(self._store.entries(SWEEP)):
            if (names := _names(entry.key)) is None:
                self._set_aside(entry.key, "its key does not name a target and a sweep")
            else:
                known.append(names)
        return known

    def clean_up(self) -> None:
        """Remove old rows that were set aside. Blocks."""
        try:
            aside = SWEEP + UNREADABLE_SUFFIX
            self._store.load(aside, self._store.since(MAX_UNREADABLE_AGE_S, self._unix_s()))
        except sqlite3.Error as problem:
            log.error("stored sweeps cannot be cleaned up, the next start tries again: %s", problem)

    def result(self, key: str, identity: str) -> Result | None:
        """The stored result with this id; None if missing, or if unreadable, which is logged. Blocks."""
        row = json.dumps([key, identity])
        try:
            data = self._store.get(SWEEP, row)
            return None if data is None else from_json(data, f"stored sweep {identity}")
        except Unreadable as problem:
            self._set_aside(row, str(problem))
        except sqlite3.Error as problem:
            log.error("target=%s stored sweep %s cannot be read and is left out: %s", key, identity, problem)
        return None

    def save(self, key: str, result: Result) -> None:
        """Save a result and remove those beyond the limits, in one transaction. Blocks."""
        row = json.dumps([key, result.id])
        items = [(row, to_json(result).encode())]
        try:
            self._store.save(SWEEP, items, self._unix_s(), lambda entries: surplus(entries, row))
        except sqlite3.Error as problem:
            log.error("a sweep's result could not be saved: %s", problem)

    def _set_aside(self, row: str, why: str) -> None:
        log.error("stored sweep %s cannot be read, and is set aside in the store: %s", row, why)
        try:
            self._store.set_aside(SWEEP, row)
        except sqlite3.Error as problem:
            log.error("stored sweep %s could not be set aside: %s", row, problem)


def surplus(entries: Sequence[Entry], keep: str, max_bytes: float = MAX_BYTES) -> Iterable[str]:
    """Keys of the results to remove: beyond MAX_RESULTS per target, and beyond `max_bytes` in total.

    entries: in the order of saving, independent of clocks. Each target's latest results are
    removed last, and `keep`, the result being saved, never.
    """
    ranked: list[tuple[int, int, Entry]] = []
    ranks: Counter[str] = Counter()
    for age, entry in enumerate(reversed(entries)):
        names = _names(entry.key)
        owner = names[0] if names is not None else ""
        ranked.append((ranks[owner], age, entry))
        ranks[owner] += 1
    total = 0
    for rank, _, entry in sorted(ranked, key=lambda row: row[:2]):
        total += entry.size_bytes
        if entry.key != keep and (rank >= MAX_RESULTS or total > max_bytes):
            yield entry.key


def _names(row: str) -> tuple[str, str] | None:
    """(target's key, sweep's id) from a row's key; None if it has another form."""
    try:
        owner, identity = json.loads(row)
    except (ValueError, TypeError):
        return None
    return (owner, identity) if isinstance(owner, str) and isinstance(identity, str) else None
