"""Sweeps that are due and wait for their turn, in the store, so that a prober that is killed meanwhile begins them when it is back."""

import asyncio
import json
import logging
import sqlite3
from threading import Lock
from typing import get_args

from prober.features.capacity.refusal import StartRequest, Trigger
from prober.net.clock import Clock
from prober.storage.saved_rows import SavedRows
from prober.storage.store import Store

WAITING, ROW = "sweeps_waiting", "all"  # kind and key of the one row in the store
MAX_AGE_S = 6 * 3_600.0  # of the last change of the row: what has waited for longer is not begun any more
log = logging.getLogger(__name__)


class WaitingSweeps:
    """Requests by the key of their target. store: None keeps nothing.

    left_over: those of an earlier process, which are to be begun
    """

    def __init__(self, store: Store | None, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self.left_over: dict[str, StartRequest] = _load(store, clock) if store is not None else {}
        self._waiting = dict(self.left_over)
        self._number = self._written = 0  # of the snapshots, so that a late thread writes no old one
        self._lock = Lock()
        self._saving: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: str, request: StartRequest) -> None:
        """The sweep of a target waits from now on."""
        self._waiting[key] = request
        self._save()

    def remove(self, key: str) -> None:
        """It waits no more: it begins, or never will."""
        self.left_over.pop(key, None)
        if self._waiting.pop(key, None) is not None:
            self._save()

    async def close(self) -> None:
        """Return once everything is saved."""
        if self._saving:
            await asyncio.wait(self._saving)
        if self._waiting:
            what = "begin after the next start" if self._store is not None else "are lost without --storage.path"
            log.info("sweeps that wait for their turn %s: targets %s", what, ", ".join(sorted(self._waiting)))

    def _save(self) -> None:
        if self._store is None:
            return
        self._number += 1
        row = json.dumps({key: [each.trigger, each.due_unix_s] for key, each in self._waiting.items()}).encode()
        saving = asyncio.get_running_loop().run_in_executor(None, self._write, self._number, row, self._clock.unix_s())
        self._saving.add(saving)
        saving.add_done_callback(self._saving.discard)

    def _write(self, number: int, row: bytes, unix_s: float) -> None:
        assert self._store is not None
        with self._lock:
            if number < self._written:
                return
            self._written = number
            try:
                self._store.save(WAITING, [(ROW, row)], unix_s)
            except sqlite3.Error as problem:
                log.error("sweeps that wait for their turn cannot be written to --storage.path: %s", problem)


def _load(store: Store, clock: Clock) -> dict[str, StartRequest]:
    def read(data: bytes) -> dict[str, StartRequest]:
        waiting: dict[str, StartRequest] = {}
        for key, (trigger, due_unix_s) in json.loads(data).items():
            if trigger not in get_args(Trigger):
                raise ValueError(f"{trigger!r} is no trigger of a sweep")
            waiting[str(key)] = StartRequest(trigger, float(due_unix_s))
        return waiting

    saved = SavedRows.of(store, WAITING, clock.unix_s() - MAX_AGE_S)
    return saved.pop(ROW, read, "which sweeps waited for their turn cannot be read") or {}
