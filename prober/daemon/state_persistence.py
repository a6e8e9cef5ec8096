"""What the prober remembers across restarts: baselines in the store, and what Prometheus holds from before."""

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
from prober.features.drift.baseline import BLOCK, BLOCKS
from prober.features.drift.detector import Observation
from prober.features.drift.monitor import Key, Watch
from prober.net.prometheus import HOUR_S, Unanswered, hourly_histograms
from prober.probing import series as probe_series
from prober.storage.store import Store

SAMPLES = BLOCK * BLOCKS
DRIFT, ENGINE, DEMAND = "drift", "engine", "demand"  # kinds of what is in the store
SAVE_EVERY_S = 60.0
KEPT_S = 30 * 86_400.0  # of a target that is not probed any more
RECALL_HOURS = 7 * 24
RECALL_EVERY_S = 60.0
RECALL_TIMES = 60  # a target may take long to be found out; after an hour it is learnt anew
log = logging.getLogger(__name__)


class Kept(Protocol):
    """Has something that a restart should not cost."""

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(key, state) of each part."""


class Memory:
    """store: None keeps all in memory; prometheus_url: None asks nobody; failures: counts writes that failed."""

    def __init__(
        self,
        watch: Watch,
        fleet: Kept,
        headroom: Kept,
        store: Store | None,
        prometheus_url: str | None,
        failures: Value,
    ) -> None:
        self.prometheus_url = prometheus_url
        self._watch, self._store, self._failures = watch, store, failures
        self._kept: dict[str, Kept] = {DRIFT: watch, ENGINE: fleet, DEMAND: headroom}
        if store is None:
            log.warning("no --storage.path: drift baselines are in memory only and are learnt anew after a restart")

    async def save_often(self) -> None:
        """All of it every minute, which is what a kill can cost of evidence; a baseline as soon as it is made."""
        while self._store is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SAVE_EVERY_S):
                    while True:
                        await self._watch.changed.wait()
                        await self._put(self._store, DRIFT, self._watch.turned())
            await self.save(self._store)

    async def save(self, store: Store) -> None:
        """States are copied one by one, so that no stamp waits for all of them; the disk is waited for in a thread."""
        for kind, kept in self._kept.items():
            await self._put(store, kind, kept.states())

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
            self._watch.told()

    async def close(self) -> None:
        """Save once more."""
        if self._store is not None:
            await self.save(self._store)
            self._store.close()

    async def recall(self) -> None:
        """Where nothing is known begin from Prometheus: a pod made anew by a rollout compares with what was before it."""
        for _ in range(RECALL_TIMES):
            for key in self._watch.without_baseline("ttft"):
                if self.prometheus_url is not None:
                    await self._recall_one(self.prometheus_url, key)
            await asyncio.sleep(RECALL_EVERY_S)

    async def _recall_one(self, url: str, key: Key) -> None:
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
            self._watch.seed(key, samples)
            log.info("target=%s workload=%s signal=%s: baseline from %s, %.0f samples", *key, url, seen)
        except (Unanswered, ValueError) as problem:
            log.warning("prometheus.url: no baseline of target=%s signal=%s from the past: %s", target, signal, problem)
