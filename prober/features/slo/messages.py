"""Templates of what a burn alert says about the present. Each expands to a sentence, or to nothing where it is not known."""

from prober.exposition.alerting import escaped
from prober.measure.burn_rate_windows import Pair, promql
from prober.measure.objective import Slo

HISTOGRAMS = {"ttft", "ttft_answer", "tpot", "itl", "e2e"}


def budget(slo: Slo, recorded: str, pair: Pair) -> str:
    """What is left of the budget, and when it is used up at the share of bad events that is the alert's value.

    By the events that were counted, as the overview has it: after a day they are those of a day, not of the whole window.

    recorded: PromQL of the remaining share, the events of the SLO's window, and those of the long window: {}, with %q for target and
        workload
    """
    left, of_window, of_long = (
        f'printf "{recorded.format(name)}" $labels.target $labels.workload | query'
        for name in ("error_budget_remaining:ratio", "events:window", f"events:increase{promql(pair.long_s)}")
    )
    # remaining share × budget × events of the window ÷ bad events a second
    span_s = f"{float(slo.error_budget_ratio) * pair.long_s:g}"
    gone = f'printf "%f * %f * {span_s} / (%f * %f)" $left $all .Value $value | query'
    return (
        f"{{{{ range {left} }}}}{{{{ $left := .Value }}}} Of the budget for {promql(slo.window_s)}, by the events counted so far, "
        f"{{{{ if gt $left 0.0 }}}}{{{{ $left | humanizePercentage }}}} is left{{{{ range {of_window} }}}}{{{{ $all := .Value }}}}"
        f"{{{{ range {of_long} }}}}{{{{ range {gone} }}}}, at this rate for {{{{ .Value | humanizeDuration }}}}"
        "{{ end }}{{ end }}{{ end }}{{ else }}nothing is left{{ end }}.{{ end }}"
    )


def latency(slo: Slo, selector: str) -> str:
    """p50 and p99 of the last five minutes against the limit, and of how many values: a p99 of few is the slowest of them."""
    if slo.signal not in HISTOGRAMS or slo.threshold_s is None:
        return ""
    series = f"llmslo_{slo.signal}_seconds"
    matchers = f"{{{escaped(selector)},target=%[1]q,workload=%[2]q}}[5m]"
    counted = f"sum(increase({series}_count{matchers})) or sum(histogram_count(increase({series}{matchers})))"
    values = f'printf "({counted}) > 0" $labels.target $labels.workload | query'
    return (
        f" In the last 5 minutes{_quantile(series, 0.5, matchers)},{_quantile(series, 0.99, matchers)}"
        f"{{{{ range {values} }}}} (of about {{{{ printf `%.0f` .Value }}}} values){{{{ end }}}}"
        f"; the limit is {slo.threshold_s * 1e3:g}ms."
    )


def _quantile(series: str, q: float, matchers: str) -> str:
    classic = f"histogram_quantile({q:g}, sum by (le) (rate({series}_bucket{matchers})))"
    native = f"histogram_quantile({q:g}, sum (rate({series}{matchers})))"
    query = f'printf "({classic} or {native}) >= 0" $labels.target $labels.workload | query'
    seconds = "{{ . | first | value | humanizeDuration }}"
    return f" p{100 * q:g} was {{{{ with {query} }}}}{seconds}{{{{ else }}}}not measured{{{{ end }}}}"


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
