"""Series, alert and panel of the budgets."""

from typing import Any

from prober.exposition.alerting import Alert, Link, no_data, of_present, probe_increase
from prober.exposition.dashboards.panels import Panel, Query, series
from prober.exposition.dashboards.queries import TARGET
from prober.exposition.families import gauge

BUDGET = gauge("llmslo_budget_remaining_ratio", "Share of the 24-hour budget that is left.", "target", "budget")


def alerts() -> tuple[Alert, ...]:
    """Alert on probes that are not sent because a budget is used up."""
    refused = probe_increase("llmslo_probes_neutral_total", "15m", 'reason="over_budget"')
    return (
        Alert(
            "LLMProbeBudgetExhausted",
            "warning",
            of_present(
                f"({refused} > 0\nor\n{no_data('over_budget')})",
                "llmslo_probes_neutral_total",
            ),
            "5m",
            "The probing budget of {{ $labels.target }} is used up",
            "No probe of workload {{ $labels.workload }} is sent, or some were not in 15 minutes, because the budget of tokens "
            "or dollars for 24 hours is used up. A probe that is not sent gives no data.",
            link=Link("target", ("target", "workload"), "1d"),
        ),
    )


def remaining(title: str, text: str, labels: tuple[str, ...], **more: Any) -> Panel:
    """Panel of what is left of the 24-hour budgets, by `labels`."""
    least = f"min by ({', '.join(labels)}) ({BUDGET}{{{TARGET}}})"
    legend = " ".join(f"{{{{{label}}}}}" for label in labels)
    return series(title, text, "percentunit", Query(least, legend), high=1, **more)
