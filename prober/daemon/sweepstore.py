"""The last results of sweeps: in memory, and in the store where there is one."""

import asyncio
import json
import logging
import sqlite3
import time

from prober.daemon.sweepresult import without_gaps
from prober.edge.store import Store
from prober.results.result import Result
from prober.results.stored import from_json, to_json

SWEEP = "sweep"  # kind of what is in the store
KEPT, KEPT_S = 20, 90 * 86_400.0  # results of a target, and how long they are kept
log = logging.getLogger(__name__)


class SweepStore:
    """Of one target, by its key: what an earlier process kept, and what comes; the latest KEPT of them."""

    def __init__(self, store: Store | None, key: str) -> None:
        self._store, self._key = store, key
        self._results: dict[str, Result] = {}
        for stored, data in (store.load(SWEEP, time.time() - KEPT_S) if store else {}).items():
            owner, identity = json.loads(stored)
            if owner == key:
                try:
                    self._take(from_json(data.decode(), f"stored sweep {identity}"))
                except ValueError as problem:
                    log.error("target=%s a stored sweep is left out: %s", key, problem)

    def latest(self) -> list[Result]:
        """Latest first."""
        return sorted(self._results.values(), key=lambda each: each.started_unix_s, reverse=True)

    async def keep(self, result: Result) -> None:
        """One more, without what is most of its size."""
        kept = without_gaps(result)
        if self._store is not None:
            await asyncio.to_thread(_save, self._store, json.dumps([self._key, kept.id]), kept)
        self._take(kept)  # told only now: what was told is there after a kill

    def _take(self, result: Result) -> None:
        self._results[result.id] = result
        while len(self._results) > KEPT:
            del self._results[self.latest()[-1].id]


def _save(store: Store, key: str, result: Result) -> None:
    try:
        store.save(SWEEP, [(key, to_json(result).encode())], time.time())
    except sqlite3.Error as problem:
        log.error("a sweep's result could not be saved: %s", problem)
