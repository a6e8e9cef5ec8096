"""What targets have spent of their budgets, kept where the next process finds it: before it is spent, not after.

A request leaves once a mark that covers it is written, which nearly always it is: marks are made ahead, by a thread. A disk that
does not take them stops no probe. It is told, and until it takes one again a kill would cost what was spent meanwhile.
"""

import asyncio
import json
import logging
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from prober.exposition.families import Value
from prober.probing.target import Target
from prober.storage.elapsed import Moment, moment
from prober.storage.store import Store
from prober.workload.budget import Budget, Checkpoint

BUDGET = "budget"  # kind of what is in the store
AGAIN_S = 5.0  # after a write that failed
PAUSE_S = 0.02  # between two writes: what many targets want meanwhile is one write
log = logging.getLogger(__name__)


class Ledger:
    """store: None keeps what was spent for this process only; kept: by target, as an earlier process wrote it."""

    def __init__(
        self,
        store: Store | None = None,
        failures: Value | None = None,
        kept: Mapping[str, bytes] = MappingProxyType({}),
    ) -> None:
        self._store, self._failures, self._kept = store, failures, dict(kept)
        self._targets: dict[str, Target] = {}
        self._gone: dict[str, dict[str, Budget]] = {}
        self._low: set[str] = set()
        self._wanted = asyncio.Event()
        self._writing: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._failing = False

    def enter(self, target: Target) -> None:
        """What this target spent before, in this process or an earlier one, counts from now on, and what it spends is kept."""
        key = target.spec.key
        for kind, before in self._gone.pop(key, {}).items():
            if kind in target.budgets:
                target.budgets[kind] = before.with_limit(target.budgets[kind].limit)
        if (data := self._kept.pop(key, None)) is not None:
            self._recall(target, data)
        if target.budgets and self._store is not None:
            self._targets[key] = target
            target.ledger = self
            self.low(key)

    def leave(self, target: Target) -> None:
        """It is no target any more; should it come back within a day, it has not forgotten what it spent."""
        now_ns = target.clock.now_ns()
        self._targets.pop(target.spec.key, None)
        self._gone = {
            key: left for key, left in self._gone.items() if any(each.spent(now_ns) for each in left.values())
        }
        if target.budgets:
            self._gone[target.spec.key] = target.budgets

    def low(self, key: str) -> None:
        """This target's marks are no longer far enough ahead."""
        self._low.add(key)
        self._wanted.set()

    async def written(self, within_s: float) -> bool:
        """Return after the next write; False, and at once, while the disk takes none, and `within_s` if it hangs."""
        if self._task is None or self._failing:
            return False
        self._wanted.set()
        self._writing = self._writing or asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait([self._writing], timeout=within_s)
        return bool(done) and not self._failing

    def start(self) -> None:
        """Write what is wanted from now on."""
        if self._store is not None:
            self._task = asyncio.create_task(self._run(self._store))

    async def _run(self, store: Store) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            await self._write(store, self._low, last=False)
            await asyncio.sleep(AGAIN_S if self._failing else PAUSE_S)

    async def close(self) -> None:
        """Nothing is spent any more: what was is kept as it is."""
        if self._store is not None and self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            await self._write(self._store, set(self._targets), last=True)

    async def _write(self, store: Store, keys: set[str], *, last: bool) -> None:
        waiting, self._writing = self._writing, None
        self._low = set()
        found = {key: self._targets[key] for key in keys if key in self._targets}
        marks = {
            key: [
                (kind, each, each.checkpoint(target.clock.now_ns(), final=last))
                for kind, each in target.budgets.items()
            ]
            for key, target in found.items()
        }
        try:
            if marks:
                unix_s = next(iter(found.values())).clock.unix_s()
                await asyncio.to_thread(store.save, BUDGET, list(_rows(marks, unix_s)), unix_s)
        except sqlite3.Error as problem:
            self._failed(problem)
            self._low |= keys
            self._wanted.set()
        else:
            if self._failing:
                log.info("what is spent of budgets is kept again")
            self._failing = False
            for _, budget, mark in (each for row in marks.values() for each in row):
                budget.checkpoint_saved(mark)
        finally:
            if waiting is not None and not waiting.done():
                waiting.set_result(None)

    def _failed(self, problem: sqlite3.Error) -> None:
        if self._failures is not None:
            self._failures.inc()
        if not self._failing:
            log.error("what is spent of budgets cannot be kept, a kill would lose it; probing goes on: %s", problem)
        self._failing = True
        if self._writing is not None:  # of those who came while it failed: the next try is seconds away
            self._writing.set_result(None)
            self._writing = None

    def _recall(self, target: Target, data: bytes) -> None:
        now = moment(target.clock.now_ns(), target.clock.unix_s())
        try:
            kept = json.loads(data)
            age_ns = Moment(kept["boot"], kept["monotonic_ns"], kept["unix_s"]).age_ns(now)
            for kind, said in kept["budgets"].items():
                if kind in target.budgets:
                    hours = {int(hour): float(amount) for hour, amount in said["hours"].items()}
                    mark = Checkpoint(int(kept["monotonic_ns"]), hours, float(said["ahead"]))
                    target.budgets[kind].restore(mark, now.monotonic_ns, age_ns)
        except (ValueError, KeyError, TypeError, AttributeError) as problem:
            log.error(
                "target=%s: what it had spent cannot be read, its budgets begin anew: %r", target.spec.key, problem
            )


def _rows(marks: Mapping[str, Sequence[tuple[str, Budget, Checkpoint]]], unix_s: float) -> Iterator[tuple[str, bytes]]:
    for key, found in marks.items():
        budgets = {kind: {"hours": mark.hours, "ahead": mark.margin} for kind, _, mark in found}
        at = moment(found[0][2].at_ns, unix_s)
        row = {"boot": at.boot, "monotonic_ns": at.monotonic_ns, "unix_s": at.unix_s, "budgets": budgets}
        yield key, json.dumps(row).encode()
