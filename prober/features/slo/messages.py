"""Templates of what a burn alert says about the present. Each expands to a sentence, or to nothing where it is not known."""

from prober.exposition.alerting import escaped
from prober.measure.burn_rate_windows import promql
from prober.measure.objective import Slo

HISTOGRAMS = {"ttft", "ttft_answer", "tpot", "itl", "e2e"}


def budget(slo: Slo, remaining: str) -> str:
    """What is left of the budget, and when it is used up at the share of bad events that is the alert's value.

    remaining: PromQL of the remaining share, with %q for target and workload
    """
    left = f'printf "{remaining}" $labels.target $labels.workload | query'
    # remaining share × budget × window, in seconds at a share of bad events of 1
    span_s = f"{float(slo.error_budget_ratio) * slo.window_s:g}"
    gone = f'printf "%f * {span_s} / %.6g" .Value $value | query'
    return (
        f"{{{{ range {left} }}}}{{{{ if gt .Value 0.0 }}}} {{{{ .Value | humanizePercentage }}}} of the budget for "
        f"{promql(slo.window_s)} is left, at this rate for {{{{ range {gone} }}}}{{{{ .Value | humanizeDuration }}}}{{{{ end }}}}."
        f"{{{{ else }}}} The budget for {promql(slo.window_s)} is used up.{{{{ end }}}}{{{{ end }}}}"
    )


def latency(slo: Slo, selector: str) -> str:
    """p50 and p99 of the last five minutes against the limit."""
    if slo.signal not in HISTOGRAMS or slo.threshold_s is None:
        return ""
    return (
        f" In the last 5 minutes{_quantile(slo, 0.5, selector)}{_quantile(slo, 0.99, selector)}"
        f"; the limit is {slo.threshold_s * 1e3:g}ms."
    )


def _quantile(slo: Slo, q: float, selector: str) -> str:
    series = f"llmslo_{slo.signal}_seconds"
    matchers = f"{{{escaped(selector)},target=%[1]q,workload=%[2]q}}[5m]"
    classic = f"histogram_quantile({q:g}, sum by (le) (rate({series}_bucket{matchers})))"
    native = f"histogram_quantile({q:g}, sum (rate({series}{matchers})))"
    query = f'printf "({classic} or {native}) >= 0" $labels.target $labels.workload | query'
    return (
        f" p{100 * q:g} was {{{{ with {query} }}}}{{{{ . | first | value | humanizeDuration }}}}{{{{ else }}}}not measured{{{{ end }}}}"
        + ("," if q == 0.5 else "")
    )


def engine(selector: str) -> str:
    """Engine and version, and its last change of the last day."""
    matchers = f"{escaped(selector)},target=%q"
    info = f'printf "group by (engine, version) (llmslo_engine_info{{{matchers}}})" $labels.target | query'
    since = f"max by (what) (llmslo_engine_last_change_timestamp_seconds{{{matchers}}})"
    change = f'printf "topk(1, {since} > time() - 86400)" $labels.target | query'
    return (
        f"{{{{ range {info} }}}} Engine: {{{{ .Labels.engine }}}} {{{{ .Labels.version }}}}.{{{{ end }}}}"
        f"{{{{ range {change} }}}} Its last change ({{{{ .Labels.what }}}}) was at {{{{ .Value | humanizeTimestamp }}}}.{{{{ end }}}}"
    )
