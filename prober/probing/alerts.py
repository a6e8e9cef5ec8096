"""Alerts on the targets and their answers."""

from prober.exposition.alerting import Alert, probe_increase


def alerts(selector: str) -> tuple[Alert, ...]:
    """Alerts on failing targets, rejected probes and wrong answers."""
    checks, wrong = (probe_increase(f"llmslo_quality_{kind}_total", "1h", selector) for kind in ("checks", "failures"))
    rejected = probe_increase("llmslo_probes_neutral_total", "15m", f'{selector},reason="rejected"')
    return (
        Alert(
            "LLMTargetFailing",
            "critical",
            f'max by (target) (llmslo_target_state{{{selector},state="failing"}}) == 1\n',
            "2m",
            "{{ $labels.target }} fails every probe",
            "At least three probes in a row failed, and none has succeeded for 2 minutes. The target may never have answered. "
            "llmslo_probe_failures_total has the reasons.",
        ),
        Alert(
            "LLMProbeRejected",
            "warning",
            f"{rejected} >= 3\n",
            "5m",
            "{{ $labels.target }} rejects the probes",
            "{{ $value | humanize }} probes of workload {{ $labels.workload }} were rejected in 15 minutes: the server does "
            "not accept the token, the model name or the request. Rejected probes count in no SLO, so they measure nothing.",
        ),
        Alert(
            "LLMQualityDegraded",
            "warning",
            f"{wrong} / ({checks} > 0) > 0.05\nand\n{wrong} >= 2.5\n",  # more than two; increase() extrapolates
            "5m",
            "{{ $labels.target }} gives wrong answers",
            "{{ $value | humanizePercentage }} of the checked answers of workload {{ $labels.workload }} were wrong in "
            "the last hour. The alert fires above 5%, from three wrong answers on.",
        ),
    )
