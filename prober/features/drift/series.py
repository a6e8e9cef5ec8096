"""Series and alerts of drift."""

from typing import get_args

from prober.exposition.alerting import Alert, Link, escaped, what_happens_template
from prober.exposition.families import counter, gauge
from prober.features.drift.state import CAUSES, Cause, Event, LoadState, Phase

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
DRIFT_PHASE = gauge("llmslo_drift_phase", "1 for the current phase of the baseline.", *_SIGNAL, "phase")
DRIFT_EVENTS = counter("llmslo_drift_events_total", "Events of the baseline, by kind.", *_SIGNAL, "event")
DRIFT_CAUSES: tuple[Cause, ...] = get_args(Cause)
DRIFT_LOADS: tuple[LoadState, ...] = get_args(LoadState)
DRIFT_PHASES: tuple[Phase, ...] = get_args(Phase)
DRIFT_EVENT_KINDS: tuple[Event, ...] = get_args(Event)


def alerts(selector: str) -> tuple[Alert, ...]:
    """Alerts on the result of drift detection: a sequential test of each latency against its own baseline."""
    return tuple(_drift(signal, name, selector) for signal, name in (("ttft", "TTFT"), ("itl", "ITL")))


def _drift(signal: str, name: str, selector: str) -> Alert:
    def query(expression: str, more: str = "") -> str:
        matchers = f'{escaped(selector)},target=%q,workload=%q,signal=\\"{signal}\\"{more}'
        return f'printf "{expression.format(f"{{{matchers}}}")}" $labels.target $labels.workload | query'

    since = query("max(llmslo_drift_since_timestamp_seconds{})")
    estimate, lower, upper = (
        query("max by (percentile) (llmslo_drift_shift_ratio{})", f',bound=\\"{b}\\"')
        for b in ("estimate", "lower", "upper")
    )
    load = query("topk(1, sum by (load) (llmslo_drift_load{} == 1))")
    causes = "".join(
        f'{{{{ if eq .Labels.load "{state}" }}}} {why[0].upper()}{why[1:]}.{{{{ end }}}}'
        for state, why in CAUSES.items()
    )
    bounds = "".join(
        f"{{{{ $p := .Labels.percentile }}}}{{{{ range {bound} }}}}{{{{ if eq .Labels.percentile $p }}}}{word} "
        "×{{ printf `%.2f` .Value }}{{ end }}{{ end }}"
        for bound, word in ((lower, " (95% interval"), (upper, " to"))
    )
    of_answers = " (the p99 of each answer)" if signal == "itl" else ""
    return Alert(
        f"LLM{name}P99Drift",
        "warning",
        f'max by (target, workload, signal) (llmslo_drift_active{{{selector},signal="{signal}",cause!="unusual"}}) == 1\n',
        "",
        f"{{{{ $labels.target }}}}: {name} has drifted from its baseline",
        f"{name}{of_answers} of workload {{{{ $labels.workload }}}} is slower than its own baseline"
        f"{{{{ range {since} }}}} since {{{{ .Value | humanizeTimestamp }}}}{{{{ end }}}}."
        f"{{{{ range {estimate} }}}} {{{{ .Labels.percentile }}}}: ×{{{{ printf `%.2f` .Value }}}}{bounds})."
        "{{ end }}"
        f"{{{{ range {load} }}}}{causes}{{{{ end }}}}" + what_happens_template(selector),
        link=Link("drift", ("target", "workload"), "1d"),
    )
