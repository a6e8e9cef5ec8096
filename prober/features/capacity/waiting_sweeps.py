"""Sweeps that are due and wait for their turn, in the store and in the lease: who is there after a kill begins them."""

import asyncio
import json
import logging
import sqlite3
from collections.abc import Iterable
from threading import Lock
from typing import get_args

from prober.features.capacity.refusal import StartRequest, Trigger
from prober.net.clock import Clock
from prober.probing.leadership import Leadership, claimed_as
from prober.storage.saved_rows import SavedRows
from prober.storage.store import Store

WAITING, ROW = "sweeps_waiting", "all"  # kind and key of the one row in the store
MAX_AGE_S = 6 * 3_600.0  # of the row's last change, and of a note in the lease: older ones are not begun
log = logging.getLogger(__name__)


class WaitingSweeps:
    """Requests by the key of their target. store: None keeps nothing there.

    leadership: its lease notes them for another replica, whose store is another one, if they are of a schedule: those have a time,
        by which the note of one that was begun is told from that of one that waits
    left_over: those of an earlier process or holder, which are to be begun
    """

    def __init__(self, store: Store | None, clock: Clock, leadership: Leadership) -> None:
        self._store, self._clock, self._leadership = store, clock, leadership
        self.left_over: dict[str, StartRequest] = _load(store, clock) if store is not None else {}
        self._waiting = dict(self.left_over)
        # Due times of those that this holder removed, which the lease may still note.
        self._settled: dict[str, float] = {}
        self._number = self._written = 0  # of the snapshots, so that a late thread writes no old one
        self._lock = Lock()
        self._saving: set[asyncio.Future[None]] = set()
        self._notes: set[asyncio.Task[int | None]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: str, request: StartRequest) -> None:
        """The sweep of a target waits from now on."""
        self._waiting[key] = request
        self._save()
        self._note(key, request, request.due_unix_s)

    def remove(self, key: str) -> None:
        """It waits no more: it begins, or never will."""
        self.left_over.pop(key, None)
        if (request := self._waiting.pop(key, None)) is not None:
            self._save()
            self._note(key, request, 0.0)

    def adopt(self, keys: Iterable[str]) -> None:
        """Add what the lease notes of these targets to `left_over`: what waited under another holder and was not begun since."""
        leadership, unix_s = self._leadership, self._clock.unix_s()
        if not leadership.where or leadership.held() is None:
            return
        for key in keys:
            due_unix_s = leadership.claimed(_noted_as(key))
            begun_unix_s = max(leadership.claimed(claimed_as(key)), self._settled.get(key, 0.0))
            if key not in self._waiting and begun_unix_s < due_unix_s and 0 <= unix_s - due_unix_s <= MAX_AGE_S:
                self.left_over[key] = self._waiting[key] = StartRequest("schedule", due_unix_s)
                log.info("target=%s: its sweep waited under another holder of lease %s", key, leadership.where)
                self._save()

    async def close(self) -> None:
        """Return once everything is saved."""
        for note in self._notes:
            note.cancel()
        if self._saving:
            await asyncio.wait(self._saving)
        kept, lost = set(self._waiting), set[str]()
        where = "after the next start"
        if self._store is None:
            lost = {key for key, each in self._waiting.items() if not (self._leadership.where and each.due_unix_s)}
            where = f"under the next holder of lease {self._leadership.where}"
        for keys, consequence in ((kept - lost, f"begin {where}"), (lost, "are lost without --storage.path")):
            if keys:
                log.info("sweeps that wait for their turn %s: targets %s", consequence, ", ".join(sorted(keys)))

    def _note(self, key: str, request: StartRequest, due_unix_s: float) -> None:
        """Write into the lease when it was due; 0: it waits no more. Without the lease its next holder goes by what is noted."""
        if not self._leadership.where or not request.due_unix_s or self._leadership.held() is None:
            return
        if not due_unix_s:
            self._settled[key] = request.due_unix_s
        note = asyncio.get_running_loop().create_task(self._leadership.claim(_noted_as(key), due_unix_s))
        self._notes.add(note)
        note.add_done_callback(self._notes.discard)

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


def _noted_as(key: str) -> str:
    """Key of the note in the lease, beside that of the claim of a sweep that begins."""
    return claimed_as(f"{key}\0waits")


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
