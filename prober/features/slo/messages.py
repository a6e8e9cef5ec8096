"""Templates for sentences in SLO alerts on the present state. Each expands to a sentence or a part of one, or to nothing if the value
is unknown.
"""

import re
from collections.abc import Callable, Sequence

from prober.exposition.alerting import escaped
from prober.exposition.dashboards.queries import BUDGET_LEFT, RECORDED
from prober.measure.objective import Slo, promql

HISTOGRAMS = {"ttft", "ttft_answer", "tpot", "itl", "e2e"}
OF_STREAM = ("target", "workload")

Selector = Callable[[str, str], str]  # of the name of a series of the SLO, and further matchers


def matchers(labels: Sequence[str] = OF_STREAM) -> str:
    """PromQL matchers for these labels of the alert, each after a comma; the values are the first arguments of `printf`."""
    return "".join(f",{label}=%[{place}]q" for place, label in enumerate(labels, 1))


def query(expr: str, *more: str, labels: Sequence[str] = OF_STREAM) -> str:
    """Template pipeline that runs the PromQL `expr`. more: arguments of `printf` after the values of the labels"""
    text, values = escaped(re.sub(r"\s+", " ", expr)), " ".join((*(f"$labels.{label}" for label in labels), *more))
    return f'printf "{text}" {values} | query'


def bad_share(exported: Selector, labels: Sequence[str] = OF_STREAM) -> str:
    """Template of the shares of bad events in the windows $long and $short (template variables), and of the number of events.

    exported: returns the selector of a series of the SLO
    """
    window = f"[%[{len(labels) + 1}]s]"
    bad, events = (
        f"sum(increase({exported(f'{kind}_total', matchers(labels))}{window}))" for kind in ("bad_events", "events")
    )

    def share(of: str) -> str:
        value = query(f"{bad} / {events}", of, labels=labels)
        return f"{{{{ range {value} }}}}{{{{ .Value | humanizePercentage }}}}{{{{ end }}}}"

    of_events = (
        f"of about {{{{ range {query(events, '$long', labels=labels)} }}}}{{{{ printf `%.0f` .Value }}}}{{{{ end }}}} "
        "events of workload {{ $labels.workload }}"
        if "workload" in labels
        else "of the events of all requests"
    )
    return (
        f"{share('$long')} {of_events} in the last {data_window(exported, '$long', labels)} were bad"
        f"{{{{ if {_is_full(exported, '$short', labels)} }}}}, and {share('$short')} of those in the last {{{{ $short }}}}{{{{ end }}}}"
    )


def data_window(exported: Selector, window: str, labels: Sequence[str] = OF_STREAM) -> str:
    """Template of the length of the window, or of the data if they are younger. window: template variable with a PromQL duration"""
    events = exported("events_total", matchers(labels))
    age = query(f"time() - min(min_over_time(timestamp({events})[%[{len(labels) + 1}]s:1m]))", window, labels=labels)
    return (
        f"{{{{ if {_is_full(exported, window, labels)} }}}}{{{{ {window} }}}}{{{{ else }}}}"
        f"{{{{ range {age} }}}}{{{{ .Value | humanizeDuration }}}}{{{{ end }}}}{{{{ end }}}}"
    )


def _is_full(exported: Selector, window: str, labels: Sequence[str]) -> str:
    """Template query that has a value if events were counted before the window began."""
    counter = exported("events_total", matchers(labels))
    return query(f"{counter} offset %[{len(labels) + 1}]s", window, labels=labels)


def budget(slo: Slo, recorded: Selector, exported: Selector, short: str) -> str:
    """Template of the remaining budget, and of the time until it is used up at the burn rate, which is the alert's value.

    The budget is that of the events counted so far, as on the overview dashboard: after a day, of the events of that day.

    short: PromQL duration over which the rate of events is taken
    """
    chosen = matchers()
    left, events = (recorded(name, chosen) for name in (BUDGET_LEFT, f"{RECORDED}_events:window"))
    by = f"({', '.join((*OF_STREAM, 'slo'))})"
    counted = f"sum by {by} (rate({exported('events_total', chosen)}[{short}]))"
    lasts = query(f"{left} * {events} / on {by} (%[3]f * {counted})", "$value")
    return (
        f"{{{{ range {query(left)} }}}} Of the budget for {promql(slo.window_s)}, by the events counted so far, "
        f"{{{{ if gt .Value 0.0 }}}}{{{{ .Value | humanizePercentage }}}} is left"
        f"{{{{ range {lasts} }}}}, at this rate for {{{{ .Value | humanizeDuration }}}}{{{{ end }}}}"
        "{{ else }}nothing is left{{ end }}.{{ end }}"
    )


def latency(slo: Slo, selector: str) -> str:
    """Template of p50 and p99 of the last five minutes, the limit and the number of values: the p99 of few is the slowest one."""
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
    """Template of the name and version of the engine, and of its last change within a day."""
    matchers = f"{escaped(selector)},target=%q"
    info = f'printf "group by (engine, version) (llmslo_engine_info{{{matchers}}})" $labels.target | query'
    since = f"max by (what) (llmslo_engine_last_change_timestamp_seconds{{{matchers}}})"
    change = f'printf "topk(1, {since} > time() - 86400)" $labels.target | query'
    return (
        f"{{{{ range {info} }}}} Engine: {{{{ .Labels.engine }}}} {{{{ .Labels.version }}}}.{{{{ end }}}}"
        f"{{{{ range {change} }}}} Its last change ({{{{ .Labels.what }}}}) was at {{{{ .Value | humanizeTimestamp }}}}.{{{{ end }}}}"
    )
