"""State that outlives the process: saved in the store, or recalled from what Prometheus recorded."""

import asyncio
import contextlib
import logging
import math
import sqlite3
import time
from collections.abc import Iterator
from typing import Protocol

from prober.exposition.buckets import representatives
from prober.exposition.families import Value
from prober.features.drift.baseline import BLOCK_COUNT, BLOCK_SAMPLES
from prober.features.drift.detector import Observation
from prober.features.drift.monitor import DriftMonitor
from prober.net.prometheus import HOUR_S, Unanswered, hourly_histograms
from prober.probing import series as probe_series
from prober.storage.store import Store

SAMPLES = BLOCK_SAMPLES * BLOCK_COUNT
DRIFT, ENGINE, DEMAND = "drift", "engine", "demand"  # kinds of what is in the store
SAVE_EVERY_S = 60.0
KEPT_S = 30 * 86_400.0  # of a target that is not probed any more
RECALL_HOURS = 7 * 24
RECALL_EVERY_S = 60.0
RECALL_TIMES = 60  # a target may take long to be found out; after an hour it is learnt anew
log = logging.getLogger(__name__)


class Stateful(Protocol):
    """Has state that a restart must not lose."""

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(name, state) of each part."""


class StatePersistence:
    """Saves and recalls the state of features.

    store: None keeps everything in memory; prometheus_url: None recalls nothing; failures: counts writes that failed
    """

    def __init__(
        self,
        drift: DriftMonitor,
        engines: Stateful,
        headroom: Stateful,
        store: Store | None,
        prometheus_url: str | None,
        failures: Value,
    ) -> None:
        self.prometheus_url = prometheus_url
        self._drift, self._store, self._failures = drift, store, failures
        self._parts: dict[str, Stateful] = {DRIFT: drift, ENGINE: engines, DEMAND: headroom}
        if store is None:
            log.warning("no --storage.path: drift baselines are in memory only and are learnt anew after a restart")

    async def save_often(self) -> None:
        """Save everything every minute, the evidence that a kill can cost; a baseline as soon as it is made."""
        while self._store is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SAVE_EVERY_S):
                    while True:
                        await self._drift.changed.wait()
                        await self._put(self._store, DRIFT, self._drift.changed_states())
            await self.save(self._store)

    async def save(self, store: Store) -> None:
        """States are copied one by one, so that no stamp waits for all of them; the disk is waited for in a thread."""
        for kind, part in self._parts.items():
            await self._put(store, kind, part.states())

    async def _put(self, store: Store, kind: str, states: Iterator[tuple[str, bytes]]) -> None:
        items = []
        for item in states:
            items.append(item)
            await asyncio.sleep(0)
        try:
            await asyncio.to_thread(store.save, kind, items, time.time())
        except sqlite3.Error as problem:
            self._failures.inc()
            log.error("%s states could not be saved, the next try is in %g s: %s", kind, SAVE_EVERY_S, problem)
        if kind == DRIFT:
            self._drift.states_saved()

    async def close(self) -> None:
        """Save once more."""
        if self._store is not None:
            await self.save(self._store)
            self._store.close()

    async def recall(self) -> None:
        """Make missing baselines from what Prometheus recorded: a pod that a rollout replaced compares with the time before it."""
        for _ in range(RECALL_TIMES):
            for key in self._drift.without_baseline("ttft"):
                if self.prometheus_url is not None:
                    await self._recall_one(self.prometheus_url, key)
            await asyncio.sleep(RECALL_EVERY_S)

    async def _recall_one(self, url: str, key: tuple[str, str, str]) -> None:
        target, workload, signal = key
        labels = {"target": target, "workload": workload}
        try:
            hours = await hourly_histograms(url, probe_series.TTFT.name, labels, time.time(), RECALL_HOURS)
            seen = sum(buckets[-1][1] for _, buckets in hours)
            if seen < SAMPLES:
                return
            each = math.ceil(1.05 * SAMPLES / len(hours))
            samples = [
                Observation(middle + HOUR_S * ((i + 0.5) / each - 0.5), value)
                for middle, buckets in hours
                for i, value in enumerate(representatives(buckets, each))
            ]
            self._drift.seed(target, (workload, signal), samples)
            log.info("target=%s workload=%s signal=%s: baseline from %s, %.0f samples", *key, url, seen)
        except (Unanswered, ValueError) as problem:
            log.warning("prometheus.url: no baseline of target=%s signal=%s from the past: %s", target, signal, problem)
