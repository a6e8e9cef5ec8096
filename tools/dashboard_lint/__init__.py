"""Lint of the dashboards: `python -m tools.dashboard_lint` checks JSON schema, expressions, texts, grid and links."""
