"""Series of the budgets."""

from prober.exposition.families import gauge

BUDGET = gauge("llmslo_budget_remaining_ratio", "Share of the 24-hour budget that is left.", "target", "budget")
