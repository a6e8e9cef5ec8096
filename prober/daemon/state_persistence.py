"""Saves state in the store, so that it survives a restart."""

import asyncio
import json
import logging
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from prober.exposition.families import Value
from prober.net.clock import Clock
from prober.probing.feature import Stateful
from prober.probing.history import MAX_EVENTS
from prober.probing.target import Target
from prober.storage.saved_rows import SavedRows
from prober.storage.store import Store

ANSWERED, EVENTS = "answered", "events"  # kinds of rows written by no feature
SAVE_INTERVAL_S = 60.0
MAX_STATE_AGE_S = 30 * 86_400.0  # for targets that are no longer probed
log = logging.getLogger(__name__)


class StatePersistence:
    """Saves the state of all parts.

    parts: kind of rows in the store → part
    store: None: state is only in memory
    failures: counts failed writes
    """

    def __init__(self, parts: Mapping[str, Stateful], store: Store | None, failures: Value, clock: Clock) -> None:
        self._parts, self._store, self._failures, self._clock = parts, store, failures, clock
        self._failing: set[str] = set()  # kinds with a failed last write
        self._writing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # one write per kind at a time

    async def save_often(self) -> None:
        """Save all states every minute, so that little evidence is lost if the process is killed."""
        while self._store is not None:
            await asyncio.sleep(SAVE_INTERVAL_S)
            await self.save(self._store)

    async def save_changes(self, kind: str) -> None:
        """Save a part's changes as they come, so that only the latest are lost if the process is killed."""
        part = self._parts[kind]
        while self._store is not None:
            await part.wait_for_changes()
            await self.put(self._store, kind, part.changed_states())

    async def save(self, store: Store) -> None:
        """Save all states. They are read one by one and written in a thread, so that no request is delayed."""
        for kind, part in self._parts.items():
            await self.put(store, kind, part.states())

    async def put(self, store: Store, kind: str, states: Iterator[tuple[str, bytes]]) -> None:
        """Save the states of one kind. A failure is counted and logged."""
        async with self._writing[kind]:
            items = []
            for item in states:
                items.append(item)
                await asyncio.sleep(0)
            surplus = (lambda entries: sorted(entry.key for entry in entries)[:-MAX_EVENTS]) if kind == EVENTS else None
            try:
                if items:
                    await asyncio.to_thread(store.save, kind, items, self._clock.unix_s(), surplus)
            except sqlite3.Error as problem:
                self._failures.inc()
                if kind not in self._failing:
                    log.error("%s states cannot be saved, a kill would lose them; probing continues: %s", kind, problem)
                self._failing.add(kind)
            else:
                if kind in self._failing:
                    log.info("%s states are saved again", kind)
                self._failing.discard(kind)
            self._parts[kind].states_saved()

    async def add(self, store: Store) -> None:
        """Save the states that this store lacks. Stored ones stay, as they were learned for longer. Raises sqlite3.Error."""
        for kind, part in self._parts.items():
            stored = {entry.key for entry in await asyncio.to_thread(store.entries, kind)}
            await self.put(store, kind, (item for item in part.states() if item[0] not in stored))

    async def close(self) -> None:
        """Save all states for the last time."""
        if self._store is not None:
            await self.save(self._store)
            self._store.close()


ROW = "all"  # key of the only row in the store
EXPECTED_SAVES = 60  # one per minute: time for discovery to find targets of the earlier process


class AnsweredTargets(Stateful):
    """Addresses at which targets have answered, by target key.

    targets: returns the probed targets
    saved: row that an earlier process stored
    """

    def __init__(self, targets: Callable[[], Iterable[Target]], saved: SavedRows) -> None:
        self._targets = targets
        problem = (
            "which targets have answered before cannot be read; those that refuse connections are taken for starting"
        )
        self._before: dict[str, str] = saved.pop(ROW, _read, problem) or {}
        self._saves = 0

    def take(self, target: Target) -> bool:
        """Remove this target's entry. Returns True if the target answered an earlier process at this address."""
        return self._before.pop(target.spec.key, None) == _address(target)

    def states(self) -> Iterator[tuple[str, bytes]]:
        """The row to save; none without targets, so that the earlier row stays until discovery has found them."""
        targets = list(self._targets())
        if targets:
            self._saves += 1
            expected = self._before if self._saves <= EXPECTED_SAVES else {}
            answered = {target.spec.key: _address(target) for target in targets if target.has_answered}
            yield ROW, json.dumps(expected | answered).encode()


def _address(target: Target) -> str:
    return f"{target.endpoint.host}:{target.endpoint.port}"


def _read(data: bytes) -> dict[str, str]:
    rows = json.loads(data)
    if not isinstance(rows, dict) or not all(isinstance(address, str) for address in rows.values()):
        raise ValueError("no table of addresses")
    return rows
