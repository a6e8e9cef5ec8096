"""Panel of the probing budgets."""

from typing import Any

from prober.exposition.dashboards.panels import Panel, Query, series
from prober.exposition.dashboards.queries import TARGET
from prober.features.budget import series as budget_series


def remaining(title: str, text: str, labels: tuple[str, ...], **more: Any) -> Panel:
    """Remaining share of the 24-hour budgets by `labels`."""
    least = f"min by ({', '.join(labels)}) ({budget_series.BUDGET}{{{TARGET}}})"
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    return series(title, text, "percentunit", Query(least, legend), high=1, **more)
