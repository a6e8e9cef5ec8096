"""Alert on the probing budgets."""

from prober.exposition.alerting import Alert, Link, of_present, probe_increase


def alerts(selector: str) -> tuple[Alert, ...]:
    """Alert on probes that the budget does not allow."""
    refused = probe_increase("llmslo_probes_neutral_total", "15m", f'{selector},reason="over_budget"')
    return (
        Alert(
            "LLMProbeBudgetExhausted",
            "warning",
            of_present(f"{refused} > 0", f"llmslo_probes_neutral_total{{{selector}}}"),
            "5m",
            "The probing budget of {{ $labels.target }} is used up",
            "{{ $value | humanize }} probes of workload {{ $labels.workload }} were not sent in 15 minutes, because the budget of "
            "tokens or dollars for 24 hours is used up. A probe that is not sent gives no data.",
            link=Link("target", ("target", "workload"), "1d"),
        ),
    )
