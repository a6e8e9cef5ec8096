"""Alerts on headroom, forecast and sweeps."""

from prober.exposition.alerting import Alert, Link, escaped, of_present


def alerts(selector: str) -> tuple[Alert, ...]:
    """Alerts about headroom, forecast and sweeps."""
    return _headroom(selector), _exhaustion(selector), _stale(selector)


def _headroom(selector: str) -> Alert:
    """Alert on low headroom. During a sweep and 5 minutes after it (window of the demand rate), only the sweeping prober counts.

    It excludes its own load and keeps the demand from before the sweep; another prober counts the sweep as demand. So the alert
    also fires where sweeps are less than 15 minutes apart. The minimum is the estimate, or the upper bound where only that is known.
    """
    name = "LLMHeadroomLow"
    free = f'llmslo_headroom_ratio{{{selector},bound=~"estimate|upper"}}'
    swept = f"max by (target, instance) (max_over_time(llmslo_sweep_rate_per_second{{{selector}}}[6m])) > 0"

    def ratio_template(word: str, more: str) -> str:
        query = _about_the_target(f"min by (target) (llmslo_headroom_ratio{{%s{more}}})", selector)
        return f"{{{{ range {query} }}}}{word} {{{{ .Value | humanizePercentage }}}}{{{{ end }}}}"

    low = (
        f"min by (target) (\n  ({free} unless on (target) {swept})\n"
        f"  or\n  ({free} and on (target, instance) {swept})\n) < 0.2"
    )
    return Alert(
        name,
        "warning",
        f'{low}\nor\n{_latest(low, "30m:5m", selector)}and on (target)\nALERTS{{alertname="{name}",alertstate="firing"}}\n',
        "15m",
        "{{ $labels.target }} has little capacity left",
        "{{ $value | humanizePercentage }} of the capacity that sweeps found is free for traffic like that of now, by its estimate, or "
        "by its upper bound where only that is known (below 0%: the load is higher than that capacity)"
        + ratio_template(", by the lower bound of the capacity", ',bound=\\"lower\\"')
        + ".",
        link=Link("capacity", ("target",)),
    )


def _exhaustion(selector: str) -> Alert:
    def date_template(bound: str) -> str:
        query = f'min by (target) (llmslo_capacity_exhaustion_timestamp_seconds{{%s,bound=\\"{bound}\\"}})'
        return f"{{{{ range {_about_the_target(query, selector)} }}}}, {bound} {{{{ .Value | humanizeTimestamp }}}}{{{{ end }}}}"

    near = (
        f'min by (target) (llmslo_capacity_exhaustion_timestamp_seconds{{{selector},bound="estimate"}})\n'
        "< time() + 14 * 86400"
    )
    return Alert(
        "LLMCapacityExhaustionForecast",
        "warning",
        # The forecast is computed once a day; one missing day does not end the alert.
        f"{near}\nor\n{_latest(near, '26h:1h', selector)}",
        "1h",
        "{{ $labels.target }} is forecast to reach its capacity within 14 days",
        "The daily peaks of demand grow towards the capacity that the last successful sweep found. They are expected to reach it on "
        f"{{{{ $value | humanizeTimestamp }}}}{date_template('earliest')}{date_template('latest')}. "
        "Method: a straight line through at most 35 days.",
        link=Link("capacity", ("target",), "35d"),
    )


def _stale(selector: str) -> Alert:
    """Seconds since the last capacity, compared with three periods of the schedule.

    The capacity's time comes from the prober, else from its history in Prometheus (a restart without storage loses it), else
    from the hours since the schedule appeared, so a new schedule gets three periods. That history covers 30 days: a schedule
    rarer than every ten days is not judged before its first capacity.
    """
    success, period = (
        f"max by (target) (llmslo_sweep_{name}_seconds{{{selector}}})" for name in ("last_success_timestamp", "period")
    )
    verdicts, refusals = (
        _about_the_target(f"sum by ({label}) (llmslo_{series}_total{{%s}}) > 0", selector)
        for label, series in (("verdict", "sweeps"), ("reason", "sweeps_refused"))
    )
    return Alert(
        "LLMSweepStale",
        "warning",
        f"(\n  time() - {success}\n"
        f"  or\n  time() - max_over_time(({success})[30d:1h])\n"
        f"  or\n  3600 * (count_over_time(({period})[30d:1h]) - 1)\n)\n"
        f"> on (target)\n3 * {period}\n",
        "15m",
        "The sweeps of {{ $labels.target }} find no capacity",
        "No capacity has been found for {{ $value | humanizeDuration }}, over three times the period of the schedule. Headroom is "
        "computed from an old capacity, or unknown. Since the prober's start, sweeps ended:"
        f"{{{{ range {verdicts} }}}} {{{{ .Labels.verdict }}}} {{{{ .Value | humanize }}}}{{{{ else }}}} none{{{{ end }}}}; refused:"
        f"{{{{ range {refusals} }}}} {{{{ .Labels.reason }}}} {{{{ .Value | humanize }}}}{{{{ else }}}} none{{{{ end }}}}.",
        link=Link("capacity", ("target",), "7d"),
    )


def _latest(expr: str, window: str, selector: str) -> str:
    """Latest value of `expr` in the window, of existing targets only. `keep_firing_for` would keep alerts on removed targets.

    A target counts as existing for 5 minutes after the last scrape of its prober, so that a restart resolves no alert.
    """
    state = f"llmslo_target_state{{{selector}}}"
    present = f"{state} or (last_over_time({state}[5m]) unless on (instance) up{{{selector}}} == 1)"
    return of_present(f"last_over_time((\n{expr}\n)[{window}])", present)


def _about_the_target(query: str, selector: str) -> str:
    """Template that runs `query` with the matchers of the alert's target in place of its %s."""
    return f'printf "{query.replace("%s", f"{escaped(selector)},target=%q")}" $labels.target | query'
