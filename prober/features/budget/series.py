"""Series of the budgets."""

from prober.exposition.families import AnySeries, Series, gauge

BUDGET = gauge("llmslo_budget_remaining_ratio", "Share of the 24-hour budget that is left.", "target", "budget")

ALL: tuple[AnySeries, ...] = tuple(value for value in globals().copy().values() if isinstance(value, Series))
