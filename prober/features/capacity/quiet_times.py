"""Ends of the pauses that targets asked for (`Retry-After`), saved so that no sweep starts in a pause after a restart."""

import asyncio
import json
import logging
import sqlite3
from functools import partial

from prober.net.clock import Clock
from prober.net.exchange import MAX_PAUSE_S
from prober.storage.saved_rows import SavedRows, moment, moment_of
from prober.storage.store import Store

QUIET = "quiet"  # kind of the rows in the store
MIN_EXTENSION_S = 1.0  # a later end is saved if it is later by this much, so that many answers cost few writes
log = logging.getLogger(__name__)


class QuietTimes:
    """Quiet times of all targets by key and URL. store: None keeps them in memory only."""

    def __init__(self, store: Store | None, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._until_s: dict[tuple[str, str], float] = _load(store, clock) if store is not None else {}
        self._saved_s = dict(self._until_s)
        self._saving: set[asyncio.Future[None]] = set()

    def left_s(self, key: str, url: str) -> float:
        """Seconds until the pause of the target at this URL ends; 0 or less without one."""
        return self._until_s.get((key, url), 0.0) - self._clock.now_ns() / 1e9

    def record(self, key: str, url: str, pause_s: float) -> None:
        """Start a pause now. It is saved in the background; a failed write is only logged."""
        until_s = self._clock.now_ns() / 1e9 + pause_s
        self._until_s[key, url] = max(until_s, self._until_s.get((key, url), 0.0))
        if self._store is None or until_s < self._saved_s.get((key, url), 0.0) + MIN_EXTENSION_S:
            return
        self._saved_s[key, url] = until_s
        now = moment(self._clock.now_ns(), self._clock.unix_s())
        row = json.dumps({**now.as_json(), "pause_s": pause_s}).encode()
        save = partial(_save, self._store, json.dumps([key, url]), row, now.unix_s)
        saving = asyncio.get_running_loop().run_in_executor(None, save)
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)

    async def close(self) -> None:
        """Return once everything is saved."""
        if self._saving:
            await asyncio.wait(self._saving)


def _save(store: Store, name: str, row: bytes, unix_s: float) -> None:
    try:
        store.save(QUIET, [(name, row)], unix_s)
    except sqlite3.Error as problem:
        log.error("a target's Retry-After cannot be written to --storage.path: %s", problem)


def _load(store: Store, clock: Clock) -> dict[tuple[str, str], float]:
    """Ends by key and URL, in seconds of this process's monotonic clock."""
    ends_s, now = dict[tuple[str, str], float](), moment(clock.now_ns(), clock.unix_s())
    saved = SavedRows.of(store, QUIET, store.since(MAX_PAUSE_S, now.unix_s))
    for name in saved:

        def read(data: bytes, name: str = name) -> None:
            (key, url), row = json.loads(name), json.loads(data)
            pause_s = float(row["pause_s"])
            if not 0 <= pause_s <= MAX_PAUSE_S:
                raise ValueError(f"{pause_s} s is no pause that a target may ask for")
            ends_s[str(key), str(url)] = (now.monotonic_ns - moment_of(row).age_ns(now)) / 1e9 + pause_s

        saved.pop(name, read, f"the quiet time of {name} cannot be read")
    return ends_s
