"""Series of the budgets."""

from functools import partial

from prober.config.load import load
from prober.config.target import TargetSpec
from prober.daemon.registry import registry
from prober.features.budget import series
from prober.features.budget.monitor import TargetBudgets
from tests.observed import observed, reconfigured


def spec(budget: str) -> TargetSpec:
    text = f"targets: [{{name: t, url: 'http://h', {budget}}}]"
    return load(text, source="c", engines=(), environment={}, read=lambda path: path).targets[0]


def test_a_budget_that_is_no_longer_configured_has_no_series() -> None:
    """One of two goes, then the other."""
    families = registry()
    target = observed(
        spec("budget: {tokens_per_day: 10000000, cost_per_day: 10, price_per_million: {prompt: 1, completion: 1}}"),
        partial(TargetBudgets, families),
    )
    target.budget_spent()
    children = families[series.BUDGET.name].children
    assert children.keys() == {("t", "tokens"), ("t", "cost")}
    target = reconfigured(target, spec("budget: {tokens_per_day: 20000000}"), families)
    target.budget_spent()
    assert children.keys() == {("t", "tokens")}
    reconfigured(target, spec("rate: 1/s"), families).budget_spent()
    assert not children
