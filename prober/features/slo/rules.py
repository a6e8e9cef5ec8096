"""Recording rules and alerts of the SLOs, from the declaration that also drives the run-time counters.

Ratios are ratios of sums over all replicas of the prober, never means of ratios. Without events there is no ratio, so an SLO
without data is neither met nor missed. Burn-rate windows: prober.measure.burn_rate_windows.
"""

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal

from prober.exposition.alerting import Alert, Rule, RuleOptions, escaped, likely_cause_template
from prober.features.slo.firing import guard, percentile_events, percentile_window, silence_s
from prober.measure.burn_rate_windows import Pair, pairs, promql
from prober.measure.objective import JudgedStream, Slo, format_percent

GROUP_LABELS = "target, workload, slo"
LEVEL = "target_workload_slo"
SIGNAL_NAMES = {
    "ttft": "TTFT",
    "ttft_answer": "TTFT of the answer",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2e": "E2E latency",
    "success": "success",
    "quality": "correct answers",
}


def groups(uses: Mapping[Slo, Sequence[JudgedStream]], options: RuleOptions) -> list[Rule]:
    """Two rule groups per SLO, in the format of Prometheus rule files."""
    slo_groups = []
    for slo, streams in uses.items():
        windows = sorted({window for pair in pairs(slo.window_s) for window in (pair.short_s, pair.long_s)})
        rules = [_ratio(slo, window, options) for window in windows]
        counted = {pair.long_s for pair in pairs(slo.window_s)}
        percentile = percentile_window(slo, streams)
        if percentile:
            counted.add(percentile[0])
            if percentile[0] not in windows:
                rules.append(_ratio(slo, percentile[0], options))
        rules += [_count(slo, window, options) for window in sorted(counted)]
        rules += [alert.as_rule(options) for alert in _alerts(slo, streams, percentile, options)]
        slo_groups.append({"name": f"llm-slo-{slo.name}", "rules": rules})
        # Over the whole SLO window: expensive to evaluate and slow to change.
        budget = [_budget(slo, options), *_states(slo, streams, options)]
        slo_groups.append({"name": f"llm-slo-{slo.name}-budget", "interval": "5m", "rules": budget})
    return slo_groups


def _alerts(
    slo: Slo, streams: Sequence[JudgedStream], percentile: tuple[int, int] | None, options: RuleOptions
) -> Iterator[Alert]:
    yield from (_burn(slo, pair, streams, options) for pair in pairs(slo.window_s))
    if percentile:
        yield _percentile(slo, *percentile, options)
    yield _no_data(slo, streams, options)


def _ratio_name(window_s: int, slo: Slo) -> str:
    return f'{LEVEL}:llmslo_slo_bad_events:ratio_rate{promql(window_s)}{{slo="{slo.name}"}}'


def _count_name(window_s: int, slo: Slo) -> str:
    return f'{LEVEL}:llmslo_slo_events:increase{promql(window_s)}{{slo="{slo.name}"}}'


def _selected(series: str, slo: Slo, options: RuleOptions) -> str:
    return f'{series}{{{options.selector},slo="{slo.name}"}}'


def _ratio(slo: Slo, window_s: int, options: RuleOptions) -> Rule:
    window = promql(window_s)
    bad, events = (_selected(f"llmslo_slo_{kind}_total", slo, options) for kind in ("bad_events", "events"))
    return {
        "record": f"{LEVEL}:llmslo_slo_bad_events:ratio_rate{window}",
        "expr": f"sum by ({GROUP_LABELS}) (rate({bad}[{window}]))\n/\n(sum by ({GROUP_LABELS}) (rate({events}[{window}])) > 0)\n",
        "labels": {"slo": slo.name},  # two rules of a file must differ in their labels
    }


def _count(slo: Slo, window_s: int, options: RuleOptions) -> Rule:
    window = promql(window_s)
    events = _selected("llmslo_slo_events_total", slo, options)
    return {
        "record": f"{LEVEL}:llmslo_slo_events:increase{window}",
        "expr": f"sum by ({GROUP_LABELS}) (increase({events}[{window}]))\n",
        "labels": {"slo": slo.name},
    }


def _budget(slo: Slo, options: RuleOptions) -> Rule:
    window = promql(slo.window_s)
    bad, events = (_selected(f"llmslo_slo_{kind}_total", slo, options) for kind in ("bad_events", "events"))
    ratio = f"sum by ({GROUP_LABELS}) (increase({bad}[{window}]))\n  /\n  (sum by ({GROUP_LABELS}) (increase({events}[{window}])) > 0)"
    return {
        "record": f"{LEVEL}:llmslo_slo_error_budget_remaining:ratio",
        "expr": f"1 - (\n  {ratio}\n) / {_number(slo.error_budget_ratio)}\n",
        "labels": {"slo": slo.name},
    }


def _states(slo: Slo, uses: Sequence[JudgedStream], options: RuleOptions) -> Iterator[Rule]:
    """met, missed or no_data: exactly one is 1. A prober with llmslo_trusted 0 gives no data."""
    record = f"{LEVEL}:llmslo_slo_state:window"
    left = f'{LEVEL}:llmslo_slo_error_budget_remaining:ratio{{slo="{slo.name}"}}'
    objective = _selected("llmslo_slo_objective_ratio", slo, options)
    trusted = f"max by (instance) (llmslo_trusted{{{options.selector}}})"
    events = f"increase({_selected('llmslo_slo_events_total', slo, options)}[{promql(silence_s(uses))}])"
    seen = f"sum by ({GROUP_LABELS}) ({events} * on (instance) group_left () {trusted}) > 0"
    yield {
        "record": record,
        "expr": f"(max by ({GROUP_LABELS}) ({objective}) > bool 0)\nunless ({seen})\n",
        "labels": {"slo": slo.name, "state": "no_data"},
    }
    for state, test in (("met", ">= 0"), ("missed", "< 0")):
        yield {
            "record": record,
            "expr": f"count by ({GROUP_LABELS}) ({left} {test})\nand\n({seen})\n",
            "labels": {"slo": slo.name, "state": state},
        }


def _burn(slo: Slo, pair: Pair, uses: Sequence[JudgedStream], options: RuleOptions) -> Alert:
    share = pair.burn * slo.error_budget_ratio
    long, short = promql(pair.long_s), promql(pair.short_s)
    tests = (
        f"{_ratio_name(pair.long_s, slo)} > {_number(share)}",
        f"{_ratio_name(pair.short_s, slo)} > {_number(share)}",
        f"{_count_name(pair.long_s, slo)} >= {guard(slo, pair, uses)}",
    )
    known = escaped(_count_name(pair.long_s, slo).replace("}", ",target=%q,workload=%q}"))
    allowed_s = _number(
        slo.error_budget_ratio * round(slo.window_s)
    )  # how long a whole budget lasts if every event is bad
    return Alert(
        "LLMErrorBudgetBurn",
        pair.severity,
        "\nand\n".join(tests) + "\n",
        "1m",  # extrapolation of a new series is largest at its start; after a minute one bad probe is one of many
        f"{{{{ $labels.target }}}} burns the error budget of SLO {slo.name} {_faster(pair.burn)}",
        f'{{{{ $value | humanizePercentage }}}} of {{{{ range printf "{known}" $labels.target $labels.workload | query }}}}about '
        "{{ printf `%.0f` .Value }}{{ else }}the{{ end }} recorded events of workload {{ $labels.workload }} in the last "
        f"{long} were bad, and over {format_percent(share)} of those in the last {short} ({judged(slo)}; "
        f"budget {format_percent(slo.error_budget_ratio)}). "
        f'At this rate the whole budget for {promql(slo.window_s)} lasts {{{{ range printf "{allowed_s} / %.6g" $value | query }}}}'
        f"{{{{ .Value | humanizeDuration }}}}{{{{ end }}}}.{likely_cause_template(options.selector)}",
        (("slo", slo.name), ("long", long), ("short", short)),
    )


def _faster(burn: Decimal) -> str:
    return "faster than it allows" if burn == 1 else f"over {burn} times as fast as it allows"


def _percentile(slo: Slo, window_s: int, events: int, options: RuleOptions) -> Alert:
    window = promql(window_s)
    return Alert(
        "LLMPercentileSLOBreach",
        "warning",
        f"{_ratio_name(window_s, slo)} > {_number(slo.error_budget_ratio)}\nand\n{_count_name(window_s, slo)} >= {events}\n",
        "",
        f"{{{{ $labels.target }}}} misses the percentile of SLO {slo.name}",
        f"{{{{ $value | humanizePercentage }}}} of the events of workload {{{{ $labels.workload }}}} in the last {window} were bad "
        f"({judged(slo)}; budget {format_percent(slo.error_budget_ratio)}). "
        f"The window has at least {percentile_events(slo):,} events, enough for this percentile."
        f"{likely_cause_template(options.selector)}",
        (("slo", slo.name),),
    )


def _no_data(slo: Slo, uses: Sequence[JudgedStream], options: RuleOptions) -> Alert:
    window = promql(silence_s(uses))
    objective = _selected("llmslo_slo_objective_ratio", slo, options)
    events = _selected("llmslo_slo_events_total", slo, options)
    slowest = min(use.rate_per_s for use in uses)
    # While an engine that has never answered refuses connections it counts as starting, up to a limit; then LLMTargetFailing fires.
    starting = f"max by (target) (llmslo_target_starting_until_timestamp_seconds{{{options.selector}}}) > time()"
    wait = promql(
        max(300, 60 * -(-5 // slowest // 60))
    )  # the first successful probes after a start are warm-up and not events
    return Alert(
        "LLMSLONoData",
        "warning",
        f"(max by ({GROUP_LABELS}) ({objective}) > bool 0)\nunless\n(sum by ({GROUP_LABELS}) (increase({events}[{window}])) > 0)\n"
        f"unless on (target)\n({starting})\n",
        wait,
        f"SLO {slo.name} of {{{{ $labels.target }}}} has no data",
        f"No event of workload {{{{ $labels.workload }}}} in {window}; about {slowest * silence_s(uses):.0f} were due. "
        "The SLO is neither met nor missed.",
        (("slo", slo.name),),
    )


def judged(slo: Slo) -> str:
    """Description of a good event, such as `TTFT up to 500ms`."""
    if slo.threshold_s is None:
        return SIGNAL_NAMES[slo.signal]
    return f"{SIGNAL_NAMES[slo.signal]} up to {slo.threshold_s * 1e3:g}ms"


def _number(value: Decimal) -> str:
    return f"{value.normalize():f}"
