"""Alerts on latencies that drift from their baselines."""

from prober.exposition.alerting import Alert, Link, escaped, what_happens_template
from prober.features.drift.state import CAUSES


def alerts(selector: str) -> tuple[Alert, ...]:
    """Alerts on the result of the prober's sequential test against its own baseline."""
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
        f'max by (target, workload, signal) (llmslo_drift_active{{{selector},signal="{signal}"}}) == 1\n',
        "",
        f"{{{{ $labels.target }}}}: {name} has drifted from its baseline",
        f"{name}{of_answers} of workload {{{{ $labels.workload }}}} is slower than its own baseline"
        f"{{{{ range {since} }}}} since {{{{ .Value | humanizeTimestamp }}}}{{{{ end }}}}."
        f"{{{{ range {estimate} }}}} {{{{ .Labels.percentile }}}}: ×{{{{ printf `%.2f` .Value }}}}{bounds})."
        "{{ end }}"
        f"{{{{ range {load} }}}}{causes}{{{{ end }}}}" + what_happens_template(selector),
        link=Link("drift", ("target", "workload"), "1d"),
    )
