"""Alerts on latencies that drift from their baselines."""

from prober.exposition.alerting import Alert, Link, escaped, likely_cause_template
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
        f"{{{{ range {load} }}}}{causes}{{{{ end }}}}" + likely_cause_template(selector),
        link=Link("drift", ("target", "workload"), "1d"),
    )


def stateless_alert(selector: str) -> Alert:
    """PromQL-only alternative for a prober without storage: p99 of 2 hours against p99 of the 3 days before."""

    def p99(window: str) -> str:
        rate = f"rate(llmslo_ttft_seconds_bucket{{{selector}}}{window})"
        return f"histogram_quantile(0.99, sum by (target, workload, le) ({rate}))"

    return Alert(
        "LLMTTFTP99DriftStateless",
        "warning",
        f"{p99('[2h]')}\n> 1.3 *\n{p99('[3d] offset 2h')}\nand\n"
        f"sum by (target, workload) (increase(llmslo_ttft_seconds_count{{{selector}}}[2h])) >= 1000\n",
        "10m",
        "{{ $labels.target }}: p99 TTFT is over 1.3 times that of the last three days",
        "p99 TTFT of workload {{ $labels.workload }} over the last 2 hours is {{ $value | humanizeDuration }}.",
        link=Link("target", ("target", "workload"), "3d"),
    )
