"""Budgets: limits of tokens and dollars that the prober may spend in 24 hours."""
