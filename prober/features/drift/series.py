"""Series and alerts of drift."""

from typing import get_args

from prober.exposition.alerting import Alert, Link, query
from prober.exposition.families import counter, gauge
from prober.features.drift.state import Cause, Event, LoadState, Phase

_PROBE = ("target", "workload")
_SIGNAL = (*_PROBE, "signal")
DRIFT_EVIDENCE = gauge(
    "llmslo_drift_evidence_ratio",
    "Evidence, on a log scale, that the latency is above its baseline; 1 is enough for an alarm once the change has lasted.",
    *_SIGNAL,
)
DRIFT_ACTIVE = gauge(
    "llmslo_drift_active",
    "1 while the latency is above its baseline, by cause: regression is slower at the same load; unusual is slower "
    "than in the hours learnt so far, and raises no alert.",
    *_SIGNAL,
    "cause",
)
DRIFT_LOAD = gauge(
    "llmslo_drift_load",
    "1 for where the engine's load is against the loads of the baseline; outside of them, and while it is missing, nothing is judged.",
    *_SIGNAL,
    "load",
)
DRIFT_SINCE = gauge("llmslo_drift_since_timestamp_seconds", "Estimated start of the active drift.", *_SIGNAL)
DRIFT_SHIFT = gauge(
    "llmslo_drift_shift_ratio",
    "Quantile since the alarm over that of the baseline at the same load, with 95% interval (bound: lower, estimate, upper); of itl "
    "a quantile of the p99 of each answer; absent without enough samples, and at a load that was not learnt.",
    *_SIGNAL,
    "percentile",
    "bound",
)
BASELINE_STATE = gauge("llmslo_drift_baseline_state", "1 for the state the baseline is in.", *_SIGNAL, "state")
DRIFT_EVENTS = counter("llmslo_drift_events_total", "Events of the baseline, by kind.", *_SIGNAL, "event")
DRIFT_CAUSES: tuple[Cause, ...] = get_args(Cause)
DRIFT_LOADS: tuple[LoadState, ...] = get_args(LoadState)
DRIFT_PHASES: tuple[Phase, ...] = get_args(Phase)
DRIFT_EVENT_KINDS: tuple[Event, ...] = get_args(Event)


def alerts() -> tuple[Alert, ...]:
    """Alerts on the result of drift detection: a sequential test of each latency against its own baseline."""
    return tuple(_drift(signal, name) for signal, name in (("ttft", "TTFT"), ("itl", "ITL")))


def _drift(signal: str, name: str) -> Alert:
    chosen = f'target=%[1]q,workload=%[2]q,signal="{signal}"'
    # The value without `percentile` is the start.
    facts = query(
        f"max(llmslo_drift_since_timestamp_seconds{{{chosen}}}) or "
        f'max by (percentile) (llmslo_drift_shift_ratio{{{chosen},bound="estimate"}})',
        "target",
        "workload",
    )
    of_answers = " (p99 of each answer)" if signal == "itl" else ""
    return Alert(
        f"LLM{name}P99Drift",
        "warning",
        f'max by (target, workload, signal) (llmslo_drift_active{{signal="{signal}",cause!="unusual"}}) == 1\n',
        "",
        f"{{{{ $labels.target }}}}: {name} has drifted from its baseline",
        f"{name}{of_answers} of workload {{{{ $labels.workload }}}} is slower{{{{ range {facts} }}}}"
        "{{ if .Labels.percentile }}, {{ .Labels.percentile }} ×{{ .Value | printf `%.2f` }}"
        "{{ else }} since {{ .Value | humanizeTimestamp }}{{ end }}{{ end }}.",
        link=Link("drift", ("target", "workload"), "1d"),
    )
