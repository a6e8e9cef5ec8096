"""Alerts on the targets and their answers."""

from prober.exposition.alerting import Alert, probe_increase

FAILING = 'state="failing"'
VANTAGE = "{{ with $labels.vantage }}vantage {{ . }}{{ else }}the prober without a vantage{{ end }}"


def alerts(selector: str) -> tuple[Alert, ...]:
    """Alerts on failing targets, rejected probes and wrong answers."""
    checks, wrong = (probe_increase(f"llmslo_quality_{kind}_total", "1h", selector) for kind in ("checks", "failures"))
    rejected = probe_increase("llmslo_probes_neutral_total", "15m", f'{selector},reason="rejected"')
    return (
        Alert(
            "LLMTargetFailing",
            "critical",
            f"{_fails_from_most(selector)}\n",
            "2m",
            "{{ $labels.target }} fails every probe",
            "At least three probes in a row failed, and none has succeeded for 2 minutes; if it is probed from several vantages, "
            "from more than half of them. The target may never have answered. llmslo_probe_failures_total has the reasons.",
        ),
        Alert(
            "LLMTargetFailingFromVantage",
            "warning",
            f"{_state_by_vantage(selector, FAILING)} == 1\nunless on (target)\n({_fails_from_most(selector)})\n",
            "5m",  # an outage is not noticed at the same time everywhere, and is a page
            f"{{{{ $labels.target }}}} fails every probe from {VANTAGE}",
            "At least three probes in a row failed, and none has succeeded for 5 minutes. From at least half of the vantages the "
            "target answers: look at the way from this one first.",
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


def _state_by_vantage(selector: str, state: str) -> str:
    """Whether a target is in a state that matches, by any replica of each vantage."""
    return f"max by (target, vantage) (llmslo_target_state{{{selector},{state}}})"


def _fails_from_most(selector: str) -> str:
    """Targets that fail from more than half of the vantages that know whether they answer; probers without one are one."""
    known = _state_by_vantage(selector, 'state=~"failing|ready"')
    return f"avg by (target) ({_state_by_vantage(selector, FAILING)} and {known} == 1) > 0.5"
