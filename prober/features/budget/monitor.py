"""Exports the remaining share of each budget."""

from prober.exposition.families import Registry
from prober.features.budget import series
from prober.measure.result import ProbeResult
from prober.probing.observer import ObservedTarget, TargetObserver


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
