"""Registers budgets with the daemon, the rule files and the store."""

from collections.abc import Iterator
from functools import partial

from prober.features.budget import series
from prober.probing.feature import Feature, Monitor, PerTarget, Shared, declared


def _monitors(shared: Shared) -> Iterator[Monitor]:
    from prober.features.budget.monitor import Ledger, TargetBudgets

    yield Ledger(shared.saved["budget"])
    yield PerTarget(partial(TargetBudgets, shared.registry))


FEATURE = Feature(
    declared(series),
    _monitors,
    series.alerts,
    lambda configuration: any(kind.budget for kind in configuration.kinds),
    saved="budget",
)
