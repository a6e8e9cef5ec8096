"""Start times of the last sweep of each target, in the store, so that `min_gap` outlives a kill."""

import asyncio
import json
import logging
import sqlite3
from math import inf

from prober.features.capacity.actions import Refused, StartRequest
from prober.net.clock import Clock
from prober.storage.elapsed import Moment, moment, moment_of
from prober.storage.saved_rows import SavedRows
from prober.storage.store import Store

STARTS = "swept"  # kind of the rows in the store
MAX_AGE_S = 90 * 86_400.0  # of a start before the last save
log = logging.getLogger(__name__)


class SweepStarts:
    """Starts of all targets by key. store: None keeps them in memory only."""

    def __init__(self, store: Store | None, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._starts_ns: dict[str, int] = (
            _load(store, moment(clock.now_ns(), clock.unix_s())) if store is not None else {}
        )

    def age_s(self, key: str) -> float:
        """Seconds since the last sweep of a target started; infinite if none is known."""
        start_ns = self._starts_ns.get(key)
        return inf if start_ns is None else (self._clock.now_ns() - start_ns) / 1e9

    async def record(self, key: str, request: StartRequest) -> None:
        """Record that a sweep starts: `min_gap` counts from when it was due, or from now without a schedule.

        Raises Refused if it cannot be saved, as the sweep would be repeated after each restart; a requested one starts anyway.
        """
        now = moment(self._clock.now_ns(), self._clock.unix_s())
        age_s = max(0.0, now.unix_s - request.due_unix_s) if request.due_unix_s else 0.0
        start = Moment(now.boot, now.monotonic_ns - round(age_s * 1e9), now.unix_s - age_s)
        if self._store is not None:
            try:
                await asyncio.to_thread(
                    self._store.save, STARTS, [(key, json.dumps(start.as_json()).encode())], now.unix_s
                )
            except sqlite3.Error as problem:
                text = f"that it begins cannot be written to --storage.path: {problem}; make room there, or mend the volume"
                if request.trigger != "request":
                    raise Refused("not_recorded", text) from None
                log.warning("target=%s sweep (%s): %s", key, request.trigger, text)
        self._starts_ns[key] = start.monotonic_ns


def _load(store: Store, now: Moment) -> dict[str, int]:
    """Starts by key, in nanoseconds of this process's monotonic clock.

    A start in the future is moved to now, and saved, so that it holds a sweep back for one `min_gap` at most.
    """
    starts_ns, moved = dict[str, int](), list[str]()
    saved = SavedRows.of(store, STARTS, store.since(MAX_AGE_S, now.unix_s))
    for key in saved:
        consequence = f"target={key}: the start of its last sweep cannot be read"
        start = saved.pop(key, lambda data: moment_of(json.loads(data)), consequence)
        if start is None:
            continue
        age_ns = start.age_ns(now)
        starts_ns[key] = now.monotonic_ns - age_ns
        if not age_ns:
            moved.append(key)
    if moved:
        try:
            store.save(STARTS, [(key, json.dumps(now.as_json()).encode()) for key in moved], now.unix_s)
        except sqlite3.Error as problem:
            log.error("starts of sweeps cannot be saved: %s", problem)
    return starts_ns
