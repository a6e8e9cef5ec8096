"""Earliest times of a target's next sweep, and its last change of the engine, saved so that they survive a kill of the prober.

The times follow from the start of its last sweep (`min_gap`) and from the pause that it requested (`Retry-After`). A row has a
moment and, for a pause, its length.
"""

import asyncio
import json
import logging
import sqlite3
from collections.abc import Iterator
from math import inf
from typing import Any

from prober.features.capacity.actions import Refused, StartRequest
from prober.net.clock import Clock
from prober.net.exchange import MAX_PAUSE_S
from prober.storage.saved_rows import Moment, SavedRows, moment, moment_of
from prober.storage.store import Store

STARTS, QUIET, CHANGES = "swept", "quiet", "changed"  # kinds of the rows in the store
MAX_AGE_S = {
    STARTS: 90 * 86_400.0,
    QUIET: MAX_PAUSE_S,
    CHANGES: inf,
}  # of a row; results before a change never count again
# A later end of a pause is saved only if later by this much, so that many answers cause few writes.
MIN_EXTENSION_S = 1.0
log = logging.getLogger(__name__)


class SweepPauses:
    """Starts of sweeps and changes of the engine by target key, and ends of pauses by key and URL. store: None: only in memory"""

    def __init__(self, store: Store | None, clock: Clock) -> None:
        self._store, self._clock = store, clock
        # Seconds of the monotonic clock, by row key: each start, change, and end of a pause.
        self._starts_s = dict(self._saved(STARTS))
        self._changes_s = dict(self._saved(CHANGES))
        self._quiet_until_s = dict(self._saved(QUIET))
        self._saved_until_s = dict(self._quiet_until_s)
        self._saving: set[asyncio.Future[None]] = set()

    def start_age_s(self, key: str) -> float:
        """Seconds since a target's last sweep started; infinite if unknown."""
        return self._now_s - self._starts_s.get(key, -inf)

    async def started(self, key: str, request: StartRequest) -> None:
        """Record the start of a sweep: `min_gap` counts from its due time, or from now without a schedule.

        Raises Refused if it cannot be saved, because each restart would repeat the sweep; a requested sweep starts anyway.
        """
        now = self._moment()
        age_s = max(0.0, now.unix_s - request.due_unix_s) if request.due_unix_s else 0.0
        start = Moment(now.boot, now.monotonic_ns - round(age_s * 1e9), now.unix_s - age_s)
        try:
            await asyncio.to_thread(self._save, STARTS, key, start)
        except sqlite3.Error as problem:
            text = f"that it begins cannot be written to --storage.path: {problem}; make room there, or mend the volume"
            if request.trigger != "request":
                raise Refused("not_recorded", text) from None
            log.warning("target=%s sweep (%s): %s", key, request.trigger, text)
        self._starts_s[key] = start.monotonic_ns / 1e9

    def quiet_s(self, key: str, url: str) -> float:
        """Seconds until the pause of a target at this URL ends; 0 or less without one."""
        return self._quiet_until_s.get(json.dumps([key, url]), 0.0) - self._now_s

    def retry_after(self, key: str, url: str, pause_s: float) -> None:
        """Begin the pause that an answer requested. It is saved in the background; a failed write is only logged."""
        name, until_s = json.dumps([key, url]), self._now_s + pause_s
        self._quiet_until_s[name] = max(until_s, self._quiet_until_s.get(name, 0.0))
        if until_s >= self._saved_until_s.get(name, 0.0) + MIN_EXTENSION_S:
            self._saved_until_s[name] = until_s
            self._save_in_background(QUIET, name, pause_s)

    def change_age_s(self, key: str) -> float:
        """Seconds since a target's engine last became another one; infinite if unknown."""
        return self._now_s - self._changes_s.get(key, -inf)

    def changed(self, key: str) -> None:
        """Record that a target's engine is another one from now on. It is saved in the background; a failed write is only logged."""
        self._changes_s[key] = self._now_s
        self._save_in_background(CHANGES, key)

    def _save_in_background(self, kind: str, name: str, pause_s: float | None = None) -> None:
        saving = asyncio.get_running_loop().run_in_executor(
            None, self._save_or_log, kind, name, self._moment(), pause_s
        )
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)

    async def close(self) -> None:
        """Wait until everything is saved."""
        if self._saving:
            await asyncio.wait(self._saving)

    @property
    def _now_s(self) -> float:
        return self._clock.now_ns() / 1e9

    def _moment(self) -> Moment:
        return moment(self._clock.now_ns(), self._clock.unix_s())

    def _save(self, kind: str, key: str, at: Moment, pause_s: float | None = None) -> None:
        """Save a row. Blocks. Raises sqlite3.Error."""
        if self._store is not None:
            row: dict[str, Any] = at.as_json() | ({} if pause_s is None else {"pause_s": pause_s})
            self._store.save(kind, [(key, json.dumps(row).encode())], self._clock.unix_s())

    def _save_or_log(self, kind: str, key: str, at: Moment, pause_s: float | None = None) -> None:
        try:
            self._save(kind, key, at, pause_s)
        except sqlite3.Error as problem:
            text = "the start of a sweep, a changed engine or a Retry-After cannot be written to --storage.path"
            log.error("target=%s: %s: %s", key, text, problem)

    def _saved(self, kind: str) -> Iterator[tuple[str, float]]:
        """(row key, its moment plus the pause in seconds of this process's monotonic clock)."""
        if self._store is None:
            return
        now = self._moment()

        def read(data: bytes) -> tuple[float, float]:
            row = json.loads(data)
            pause_s = float(row["pause_s"]) if kind == QUIET else 0.0
            if not 0 <= pause_s <= MAX_PAUSE_S:
                raise ValueError(f"{pause_s} s is no pause that a target may ask for")
            return moment_of(row).age_ns(now) / 1e9, pause_s

        saved = SavedRows.of(self._store, kind, self._store.since(MAX_AGE_S[kind], now.unix_s))
        for key in saved:
            row = saved.pop(key, read, f"target={key}: a saved {kind} row of its sweeps cannot be read")
            if row is not None:
                age_s, pause_s = row
                yield key, now.monotonic_ns / 1e9 - age_s + pause_s
                if kind == STARTS and age_s == 0:
                    # A start in the future delays a sweep by one `min_gap`, not by one after each restart.
                    self._save_or_log(STARTS, key, now)
