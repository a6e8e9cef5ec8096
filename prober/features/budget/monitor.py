"""Exports what is left of each budget, and saves the amounts spent for the next process."""

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from math import isfinite
from typing import Any

from prober.exposition.families import Registry
from prober.features.budget import series
from prober.measure.result import ProbeResult
from prober.probing.feature import Monitor
from prober.probing.observer import ObservedTarget, TargetObserver
from prober.probing.target import Target
from prober.storage.saved_rows import SavedRows, moment, moment_of


class TargetBudgets(TargetObserver):
    """Exports what is left of each budget of one target, as a share."""

    def __init__(self, registry: Registry, observed: ObservedTarget) -> None:
        self._registry, self._observed, self._name = registry, observed, observed.name

    def summary(self) -> dict[str, Any]:
        target = self._observed.target
        now_ns = target.clock.now_ns()
        spent = {kind: (budget.limit, budget.spent(now_ns)) for kind, budget in target.budgets.items()}
        return {"budgets": [{"budget": kind, "limit": limit, "spent": used} for kind, (limit, used) in spent.items()]}

    def probe_ended(self, result: ProbeResult) -> None:
        self.budget_spent()

    def budget_spent(self) -> None:
        now_ns = self._observed.target.clock.now_ns()
        for kind, budget in self._observed.target.budgets.items():
            self._registry.show(series.BUDGET, budget.remaining_ratio(now_ns), self._name, kind)


SAVE_INTERVAL_S = 1.0  # a kill loses little of the amounts spent
MAX_CLOCK_ERROR_S = 3600.0  # between machines or boots; amounts count for longer rather than shorter


class Ledger(Monitor):
    """The budgets of all targets. saved: rows by target key that an earlier process stored"""

    saving_task = "budgets"

    def __init__(self, saved: SavedRows | None = None) -> None:
        self._saved = saved or SavedRows()
        self._targets: dict[str, Target] = {}
        self._amounts: dict[str, dict[str, dict[int, float]]] = {}  # as last returned by `changed_states`

    def enter(self, target: Target) -> None:
        """Add a target, with what it spent before, in this process or another one."""
        self._restore(target, self._saved)
        if target.budgets:
            self._targets[target.spec.key] = target

    def leave(self, target: Target) -> None:
        """Remove a target. Its spent amounts still count if it returns within a day."""
        key = target.spec.key
        self._targets.pop(key, None)
        self._amounts.pop(key, None)
        if target.budgets:
            self._saved.put([(key, _row(target))])

    def merge(self, saved: SavedRows) -> None:
        """Add the amounts in a store that could not be used earlier to those spent so far."""
        for target in self._targets.values():
            self._restore(target, saved)

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(key, amounts spent) of each target with a budget."""
        for key, target in list(self._targets.items()):
            yield key, _row(target)

    async def wait_for_changes(self) -> None:
        await asyncio.sleep(SAVE_INTERVAL_S)

    def changed_states(self) -> Iterator[tuple[str, bytes]]:
        """Like `states`, for targets that have spent since the last call."""
        for key, target in list(self._targets.items()):
            amounts = {kind: dict(budget.hours) for kind, budget in target.budgets.items()}
            if self._amounts.get(key) != amounts:
                self._amounts[key] = amounts
                yield key, _row(target)

    def _restore(self, target: Target, saved: SavedRows) -> None:
        key = target.spec.key
        saved.pop(key, partial(self._recall, target), f"target={key}: its saved budgets cannot be read and start at 0")

    def _recall(self, target: Target, data: bytes) -> None:
        """Restore the amounts spent from a stored row: all budgets of the target, or none if a value is invalid."""
        now, row = moment(target.clock.now_ns(), target.clock.unix_s()), json.loads(data)
        at = moment_of(row)
        restored = {
            kind: {int(hour): float(amount) for hour, amount in hours.items()}
            for kind, hours in row["budgets"].items()
            if kind in target.budgets
        }
        if not all(isfinite(amount) and amount >= 0 for hours in restored.values() for amount in hours.values()):
            raise ValueError("an amount is negative or not finite")
        shift_ns = now.monotonic_ns - at.age_ns(now, MAX_CLOCK_ERROR_S) - at.monotonic_ns
        for kind, hours in restored.items():
            target.budgets[kind].restore(hours, shift_ns, now.monotonic_ns)


def _row(target: Target) -> bytes:
    at = moment(target.clock.now_ns(), target.clock.unix_s())
    budgets = {kind: budget.hours for kind, budget in target.budgets.items()}
    return json.dumps({**at.as_json(), "budgets": budgets}).encode()
