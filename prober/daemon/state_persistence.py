"""Saves state in the store, and restores it from the store or from series that Prometheus recorded."""

import asyncio
import contextlib
import json
import logging
import math
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from prober.exposition.buckets import representatives
from prober.exposition.families import Value
from prober.features.budget.monitor import BUDGET, Ledger
from prober.features.drift.blocks import BLOCK_COUNT, BLOCK_SAMPLES
from prober.features.drift.monitor import DriftMonitor
from prober.features.drift.state import Observation
from prober.net.clock import Clock
from prober.net.prometheus import HOUR_S, QueryFailed, hourly_histograms
from prober.probing import series as probe_series
from prober.probing.history import MAX_EVENTS, EventLog
from prober.probing.target import Target
from prober.storage.saved_rows import SavedRows
from prober.storage.store import Entry, Store

NEEDED_SAMPLES = BLOCK_SAMPLES * BLOCK_COUNT
# Kinds of rows in the store.
DRIFT, ENGINE, DEMAND, SLO, ANSWERED, DIAGNOSIS = "drift", "engine", "demand", "slo", "answered", "diagnosis"
ANSWERS, EVENTS = "answers", "events"
SAVE_INTERVAL_S, SAVE_BUDGETS_S = 60.0, 1.0
MAX_STATE_AGE_S = 30 * 86_400.0  # of a target that is no longer probed
RECALL_HOURS = 7 * 24
RECALL_INTERVAL_S = 60.0
MAX_RECALLS = 60  # the model of a target may be unknown at first; after an hour baselines are learned from new samples
log = logging.getLogger(__name__)


class Stateful(Protocol):
    """A part with state that must survive a restart."""

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(name, state) of each part, to be saved."""


class StatePersistence:
    """Saves and restores the state of features.

    others: further parts with state, by the kind of their rows in the store
    store: if None, state is in memory only
    prometheus_url: if None, nothing is restored from Prometheus
    failures: counts failed writes
    """

    def __init__(
        self,
        drift: DriftMonitor,
        events: EventLog,
        others: Mapping[str, Stateful],
        store: Store | None,
        prometheus_url: str | None,
        failures: Value,
        clock: Clock,
    ) -> None:
        self.prometheus_url = prometheus_url
        self._drift, self._events, self._store, self._failures, self._clock = drift, events, store, failures, clock
        self._failing: set[str] = set()  # kinds whose last write failed
        self._parts: dict[str, Stateful] = {DRIFT: drift, EVENTS: events, **others}

    async def save_often(self) -> None:
        """Save all states every minute, so that a kill loses little evidence, and new baselines and alarms of drift at once."""
        while self._store is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SAVE_INTERVAL_S):
                    while True:
                        await self._drift.changed.wait()
                        await self.put(self._store, DRIFT, self._drift.changed_states())
            await self.save(self._store)

    async def save_events(self) -> None:
        """Save events as they come, so that a kill loses those of an instant."""
        while self._store is not None:
            await self._events.changed.wait()
            await self.put(self._store, EVENTS, self._events.new_states())

    async def save_budgets(self, ledger: Ledger) -> None:
        """Save the amounts spent every second, so that a kill loses little of them."""
        while self._store is not None:
            await asyncio.sleep(SAVE_BUDGETS_S)
            if rows := list(ledger.changed_states()):
                await self.put(self._store, BUDGET, iter(rows))

    async def save(self, store: Store) -> None:
        """Save all states. They are read one by one and written in a thread, so that no request is delayed."""
        for kind, part in self._parts.items():
            await self.put(store, kind, part.states())

    async def put(self, store: Store, kind: str, states: Iterator[tuple[str, bytes]]) -> None:
        """Save the states of one kind. A failure is counted and logged."""
        items = []
        for item in states:
            items.append(item)
            await asyncio.sleep(0)
        save = partial(store.save_and_prune, surplus=_old_events) if kind == EVENTS else store.save
        try:
            await asyncio.to_thread(save, kind, items, self._clock.unix_s())
        except sqlite3.Error as problem:
            self._failures.inc()
            if kind not in self._failing:
                log.error("%s states cannot be saved, a kill would lose them; probing continues: %s", kind, problem)
            self._failing.add(kind)
        else:
            if kind in self._failing:
                log.info("%s states are saved again", kind)
            self._failing.discard(kind)
        if kind == DRIFT:
            self._drift.states_saved()

    async def add(self, store: Store) -> None:
        """Save the states that this store lacks; stored ones stay, as they were learned over a longer time. Raises sqlite3.Error."""
        for kind, part in self._parts.items():
            stored = {entry.key for entry in await asyncio.to_thread(store.entries, kind)}
            await self.put(store, kind, (item for item in part.states() if item[0] not in stored))

    async def close(self) -> None:
        """Save all states a last time."""
        if self._store is not None:
            await self.save(self._store)
            self._store.close()

    async def recall(self) -> None:
        """Learn missing baselines from Prometheus, so that a pod of a new rollout is compared with the time before it."""
        for _ in range(MAX_RECALLS):
            for key in self._drift.without_baseline("ttft"):
                if self.prometheus_url is not None:
                    await self._recall_one(self.prometheus_url, key)
            await asyncio.sleep(RECALL_INTERVAL_S)

    async def _recall_one(self, url: str, key: tuple[str, str, str]) -> None:
        target, workload, signal = key
        labels = {"target": target, "workload": workload}
        try:
            hours = await hourly_histograms(url, probe_series.TTFT.name, labels, self._clock.unix_s(), RECALL_HOURS)
            observations = sum(buckets[-1][1] for _, buckets in hours)
            if observations < NEEDED_SAMPLES:
                return
            per_hour = math.ceil(1.05 * NEEDED_SAMPLES / len(hours))
            samples = [
                Observation(middle + HOUR_S * ((i + 0.5) / per_hour - 0.5), value)
                for middle, buckets in hours
                for i, value in enumerate(representatives(buckets, per_hour))
            ]
            self._drift.seed(target, (workload, signal), samples)
            log.info("target=%s workload=%s signal=%s: baseline from %s, %.0f samples", *key, url, observations)
        except (QueryFailed, ValueError) as problem:
            log.warning("prometheus.url: no baseline of target=%s signal=%s from the past: %s", target, signal, problem)


def _old_events(entries: Sequence[Entry]) -> list[str]:
    return sorted(entry.key for entry in entries)[:-MAX_EVENTS]


ROW = "all"  # key of the one row in the store
EXPECTED_SAVES = 60  # one a minute: for so long a target of the earlier process may still be found by its discovery


class AnsweredTargets:
    """Addresses at which targets have answered, by key of the target.

    targets: returns the targets that are probed now
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
        """True if this target answered an earlier process at this address. A second call returns False, as the entry is removed."""
        return self._before.pop(target.spec.key, None) == _address(target)

    def states(self) -> Iterator[tuple[str, bytes]]:
        """The row to save. There is none while there are no targets, so that the earlier row stays: discovery may still find them."""
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
