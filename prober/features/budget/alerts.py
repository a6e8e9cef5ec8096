"""Alert on the probing budgets."""

from prober.exposition.alerting import Alert, Link, no_data, of_present, probe_increase


def alerts(selector: str) -> tuple[Alert, ...]:
    """Alert on probes that the budget does not allow."""
    refused = probe_increase("llmslo_probes_neutral_total", "15m", f'{selector},reason="over_budget"')
    return (
        Alert(
            "LLMProbeBudgetExhausted",
            "warning",
            of_present(
                f"({refused} > 0\nor\n{no_data('over_budget', selector)})",
                f"llmslo_probes_neutral_total{{{selector}}}",
            ),
            "5m",
            "The probing budget of {{ $labels.target }} is used up",
            "No probe of workload {{ $labels.workload }} is sent, or some were not in 15 minutes, because the budget of tokens "
            "or dollars for 24 hours is used up. A probe that is not sent gives no data.",
            link=Link("target", ("target", "workload"), "1d"),
        ),
    )
