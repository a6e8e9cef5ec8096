"""Exports the remaining share of each budget, and saves the amounts spent, so that the next process knows them.

A request is sent only if a written checkpoint covers it. A thread writes checkpoints in advance, so that a request seldom waits. A
failing disk stops no probe: it is logged, and a kill before the next successful write loses the amounts spent meanwhile.
"""

import asyncio
import json
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import isfinite

from prober.exposition.families import Registry, Value
from prober.features.budget import series
from prober.measure.result import ProbeResult
from prober.probing.observer import ObservedTarget, TargetObserver
from prober.probing.supervisor import Supervisor
from prober.probing.target import Target
from prober.storage.saved_rows import SavedRows, moment, moment_of
from prober.storage.store import Store
from prober.workload.budget import Budget, Checkpoint


class TargetBudgets(TargetObserver):
    """Exports the remaining share of each budget of one target."""

    def __init__(self, registry: Registry, observed: ObservedTarget) -> None:
        self._registry, self._observed, self._name = registry, observed, observed.name

    def configured(self) -> None:
        budgets = {(self._name, kind) for kind in self._observed.target.budgets}
        self._registry.keep(series.BUDGET, budgets, self._name)

    def probe_ended(self, result: ProbeResult) -> None:
        self.budget_spent()

    def budget_spent(self) -> None:
        now_ns = self._observed.target.clock.now_ns()
        for kind, budget in self._observed.target.budgets.items():
            self._registry.show(series.BUDGET, budget.remaining_ratio(now_ns), self._name, kind)


BUDGET = "budget"  # kind of the rows in the store
RETRY_S = 5.0  # after a failed write
MAX_CLOCK_ERROR_S = 3600.0  # between machines or boots: what was spent counts rather too long than too short
PAUSE_S = 0.02  # between two writes: joins the checkpoints of many targets into one write
log = logging.getLogger(__name__)


class Ledger:
    """Writes checkpoints of the budgets of all targets.

    store: if None, the amounts that were spent are lost when this process ends
    failures: counts failed writes
    saved: rows that an earlier process stored, by key of the target
    """

    def __init__(
        self,
        store: Store | None = None,
        failures: Value | None = None,
        saved: SavedRows | None = None,
    ) -> None:
        self._store, self._failures, self._saved = store, failures, saved or SavedRows()
        self._targets: dict[str, Target] = {}
        self._removed: dict[str, dict[str, Budget]] = {}
        self._due: set[str] = set()
        self._requested = asyncio.Event()
        self._writing: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._failing = False

    def enter(self, target: Target) -> None:
        """Add a target: restore what it spent earlier, in this process or another one, and save what it spends from now on."""
        key = target.spec.key
        for kind, before in self._removed.pop(key, {}).items():
            if kind in target.budgets:
                target.budgets[kind] = before.with_limit(target.budgets[kind].limit)
        consequence = f"target={key}: its saved budgets cannot be read and start at 0"
        self._saved.pop(key, partial(self._recall, target), consequence)
        if target.budgets:
            self._targets[key] = target
        if target.budgets and self._store is not None:
            target.ledger = self
            self.needs_checkpoint(key)

    def leave(self, target: Target) -> None:
        """Remove a target. If it returns within a day, its spent amounts still count."""
        now_ns = target.clock.now_ns()
        self._targets.pop(target.spec.key, None)
        self._removed = {
            key: budgets
            for key, budgets in self._removed.items()
            if any(budget.spent(now_ns) for budget in budgets.values())
        }
        if target.budgets:
            self._removed[target.spec.key] = target.budgets

    def needs_checkpoint(self, key: str) -> None:
        """Request a new checkpoint of the target."""
        self._due.add(key)
        self._requested.set()

    async def written(self, within_s: float) -> bool:
        """Wait at most `within_s` for the next write. Returns True if it succeeded; False at once while writes fail."""
        if self._task is None or self._failing:
            return False
        self._requested.set()
        self._writing = self._writing or asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait([self._writing], timeout=within_s)
        return bool(done) and not self._failing

    def start(self, supervisor: Supervisor) -> None:
        """Start to write checkpoints."""
        if self._store is not None:
            self._task = supervisor.start("budgets", partial(self._run, self._store))

    async def _run(self, store: Store) -> None:
        while True:
            await self._requested.wait()
            self._requested.clear()
            await self._write(store, self._due, last=False)
            await asyncio.sleep(RETRY_S if self._failing else PAUSE_S)

    async def close(self) -> None:
        """Stop, and write the exact amounts spent. Nothing may be spent afterwards."""
        if self._store is not None and self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            await self._write(self._store, set(self._targets), last=True)

    async def merge(self, store: Store, saved: SavedRows) -> None:
        """Add the amounts spent so far to those in a store that could not be used before. Nothing may be spent afterwards."""
        for key, target in self._targets.items():
            saved.pop(
                key, partial(self._recall, target), f"target={key}: its saved budgets cannot be read and start at 0"
            )
        await self._write(store, set(self._targets), last=True)

    async def _write(self, store: Store, keys: set[str], *, last: bool) -> None:
        waiting, self._writing = self._writing, None
        self._due = set()
        targets = {key: self._targets[key] for key in keys if key in self._targets}
        checkpoints = {
            key: [
                (kind, budget, budget.checkpoint(target.clock.now_ns(), final=last))
                for kind, budget in target.budgets.items()
            ]
            for key, target in targets.items()
        }
        try:
            if checkpoints:
                unix_s = next(iter(targets.values())).clock.unix_s()
                await asyncio.to_thread(store.save, BUDGET, list(_rows(checkpoints, unix_s)), unix_s)
        except sqlite3.Error as problem:
            self._failed(problem)
            self._due |= keys
            self._requested.set()
        else:
            if self._failing:
                log.info("spent budgets are saved again")
            self._failing = False
            for row in checkpoints.values():
                for _, budget, checkpoint in row:
                    budget.checkpoint_saved(checkpoint)
        finally:
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    def _failed(self, problem: sqlite3.Error) -> None:
        if self._failures is not None:
            self._failures.inc()
        if not self._failing:
            log.error("spent budgets cannot be saved, a kill would lose them; probing continues: %s", problem)
        self._failing = True
        if self._writing is not None:  # do not let callers wait: the next write is seconds away
            self._writing.set_result(None)
            self._writing = None

    def _recall(self, target: Target, data: bytes) -> None:
        """Restore the amounts that the target spent of its budgets from a stored row: those of all budgets, or of none."""
        now, row = moment(target.clock.now_ns(), target.clock.unix_s()), json.loads(data)
        at = moment_of(row)
        checkpoints = {
            kind: Checkpoint(
                at.monotonic_ns,
                {int(hour): float(amount) for hour, amount in saved["hours"].items()},
                float(saved["ahead"]),
            )
            for kind, saved in row["budgets"].items()
            if kind in target.budgets
        }
        amounts = [amount for mark in checkpoints.values() for amount in (*mark.hours.values(), mark.margin)]
        if not all(isfinite(amount) and amount >= 0 for amount in amounts):
            raise ValueError("an amount is negative or not finite")
        for kind, checkpoint in checkpoints.items():
            target.budgets[kind].restore(checkpoint, now.monotonic_ns, at.age_ns(now, MAX_CLOCK_ERROR_S))


def _rows(
    checkpoints: Mapping[str, Sequence[tuple[str, Budget, Checkpoint]]], unix_s: float
) -> Iterator[tuple[str, bytes]]:
    for key, rows in checkpoints.items():
        budgets = {kind: {"hours": mark.hours, "ahead": mark.margin} for kind, _, mark in rows}
        at = moment(rows[0][2].at_ns, unix_s).as_json()
        yield key, json.dumps({**at, "budgets": budgets}).encode()
