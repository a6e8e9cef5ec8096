"""Times after which a target may be swept again: `min_gap` after its last sweep started, and a pause that it asked for (`Retry-After`).

They are saved, so that they are known after a kill of the prober.
"""

import asyncio
import json
import logging
import sqlite3
from math import inf
from typing import Any

from prober.features.capacity.actions import Refused, StartRequest
from prober.net.clock import Clock
from prober.net.exchange import MAX_PAUSE_S
from prober.storage.saved_rows import Moment, SavedRows, moment, moment_of
from prober.storage.store import Store

STARTS, QUIET = "swept", "quiet"  # kinds of the rows in the store
MAX_AGE_S = 90 * 86_400.0  # of a start before the last save
# A later end of a pause is saved if it is later by this much, so that many answers cost few writes.
MIN_EXTENSION_S = 1.0
log = logging.getLogger(__name__)


class SweepPauses:
    """Starts of sweeps by the targets' keys, and ends of pauses by key and URL. store: None keeps them in memory only."""

    def __init__(self, store: Store | None, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._starts_ns: dict[str, int] = {}
        self._quiet_until_s: dict[tuple[str, str], float] = {}
        if store is not None:
            self._load_starts(store)
            self._load_quiet_times(store)
        self._saved_s = dict(self._quiet_until_s)
        self._saving: set[asyncio.Future[None]] = set()

    def start_age_s(self, key: str) -> float:
        """Seconds since the last sweep of a target started; infinite if none is known."""
        start_ns = self._starts_ns.get(key)
        return inf if start_ns is None else (self._clock.now_ns() - start_ns) / 1e9

    async def started(self, key: str, request: StartRequest) -> None:
        """Record that a sweep starts: `min_gap` counts from when it was due, or from now without a schedule.

        Raises Refused if it cannot be saved, as the sweep would be repeated after each restart; a requested one starts anyway.
        """
        now = self._now()
        age_s = max(0.0, now.unix_s - request.due_unix_s) if request.due_unix_s else 0.0
        start = Moment(now.boot, now.monotonic_ns - round(age_s * 1e9), now.unix_s - age_s)
        if self._store is not None:
            try:
                await asyncio.to_thread(self._store.save, STARTS, [(key, _row(start.as_json()))], now.unix_s)
            except sqlite3.Error as problem:
                text = f"that it begins cannot be written to --storage.path: {problem}; make room there, or mend the volume"
                if request.trigger != "request":
                    raise Refused("not_recorded", text) from None
                log.warning("target=%s sweep (%s): %s", key, request.trigger, text)
        self._starts_ns[key] = start.monotonic_ns

    def quiet_s(self, key: str, url: str) -> float:
        """Seconds until the pause of the target at this URL ends; 0 or less without one."""
        return self._quiet_until_s.get((key, url), 0.0) - self._clock.now_ns() / 1e9

    def retry_after(self, key: str, url: str, pause_s: float) -> None:
        """Start a pause now. It is saved in the background; a failed write is only logged."""
        now = self._now()
        until_s = now.monotonic_ns / 1e9 + pause_s
        self._quiet_until_s[key, url] = max(until_s, self._quiet_until_s.get((key, url), 0.0))
        store = self._store
        if store is None or until_s < self._saved_s.get((key, url), 0.0) + MIN_EXTENSION_S:
            return
        self._saved_s[key, url] = until_s
        row = json.dumps([key, url]), _row({**now.as_json(), "pause_s": pause_s})

        def save() -> None:
            try:
                store.save(QUIET, [row], now.unix_s)
            except sqlite3.Error as problem:
                log.error("a target's Retry-After cannot be written to --storage.path: %s", problem)

        saving = asyncio.get_running_loop().run_in_executor(None, save)
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)

    async def close(self) -> None:
        """Return once everything is saved."""
        if self._saving:
            await asyncio.wait(self._saving)

    def _now(self) -> Moment:
        return moment(self._clock.now_ns(), self._clock.unix_s())

    def _load_starts(self, store: Store) -> None:
        """Load the starts. One in the future is moved to now, and saved, so that it holds a sweep back for one `min_gap` at most."""
        now, moved = self._now(), list[str]()
        saved = SavedRows.of(store, STARTS, store.since(MAX_AGE_S, now.unix_s))
        for key in saved:
            consequence = f"target={key}: the start of its last sweep cannot be read"
            start = saved.pop(key, lambda data: moment_of(json.loads(data)), consequence)
            if start is not None:
                age_ns = start.age_ns(now)
                self._starts_ns[key] = now.monotonic_ns - age_ns
                moved += [] if age_ns else [key]
        if moved:
            try:
                store.save(STARTS, [(key, _row(now.as_json())) for key in moved], now.unix_s)
            except sqlite3.Error as problem:
                log.error("starts of sweeps cannot be saved: %s", problem)

    def _load_quiet_times(self, store: Store) -> None:
        """Load the ends of pauses, in seconds of this process's monotonic clock."""
        now = self._now()
        saved = SavedRows.of(store, QUIET, store.since(MAX_PAUSE_S, now.unix_s))
        for name in saved:

            def read(data: bytes, name: str = name) -> None:
                (key, url), row = json.loads(name), json.loads(data)
                pause_s = float(row["pause_s"])
                if not 0 <= pause_s <= MAX_PAUSE_S:
                    raise ValueError(f"{pause_s} s is no pause that a target may ask for")
                until_s = (now.monotonic_ns - moment_of(row).age_ns(now)) / 1e9 + pause_s
                self._quiet_until_s[str(key), str(url)] = until_s

            saved.pop(name, read, f"the quiet time of {name} cannot be read")


def _row(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()
