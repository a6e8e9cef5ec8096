"""Recording rules and alerts of the SLOs, from the declaration that also drives the run-time counters.

Ratios are ratios of sums over all replicas of the prober, never means of ratios. Without events there is no ratio, so an SLO
without data is neither met nor missed. Burn-rate windows: prober.measure.burn_rate_windows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from prober.exposition.alerting import Alert, Rule, RuleOptions, escaped, likely_cause_template
from prober.features.slo.firing import guard, percentile_events, percentile_window, silence_s
from prober.measure.burn_rate_windows import Pair, pairs, promql
from prober.measure.objective import JudgedStream, Slo, format_percent

GROUP_LABELS = "target, workload, slo"
LEVEL = "target_workload_slo"
VANTAGE_LABELS = "target, workload, vantage, slo"
VANTAGE_LEVEL = "target_workload_vantage_slo"
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
        rules += _by_vantage(slo, options)
        rules += [alert.as_rule(options) for alert in _alerts(slo, streams, percentile, options)]
        slo_groups.append({"name": f"llm-slo-{slo.name}", "rules": rules})
        # Over the whole SLO window: expensive to evaluate and slow to change.
        budget = [_budget(slo, options), *_states(slo, streams, options)]
        slo_groups.append({"name": f"llm-slo-{slo.name}-budget", "interval": "5m", "rules": budget})
    return slo_groups


def _alerts(
    slo: Slo, streams: Sequence[JudgedStream], percentile: tuple[int, int] | None, options: RuleOptions
) -> Iterator[Alert]:
    for pair in pairs(slo.window_s):
        yield _burn(slo, pair, streams, options)
        if pair.severity == "critical":
            yield _burn_from_vantage(slo, pair, streams)
    if percentile:
        yield _percentile(slo, *percentile, options)
    yield _no_data(slo, streams, options)


def _ratio_name(window_s: int, slo: Slo, level: str = LEVEL) -> str:
    return f'{level}:llmslo_slo_bad_events:ratio_rate{promql(window_s)}{{slo="{slo.name}"}}'


def _count_name(window_s: int, slo: Slo, level: str = LEVEL) -> str:
    return f'{level}:llmslo_slo_events:increase{promql(window_s)}{{slo="{slo.name}"}}'


def _selected(series: str, slo: Slo, options: RuleOptions) -> str:
    return f'{series}{{{options.selector},slo="{slo.name}"}}'


def _by_vantage(slo: Slo, options: RuleOptions) -> Iterator[Rule]:
    """What the pages need of each vantage; no series of probers without one."""
    named = replace(options, selector=f'{options.selector},vantage!=""')
    paging = [pair for pair in pairs(slo.window_s) if pair.severity == "critical"]
    for window_s in sorted({window for pair in paging for window in (pair.short_s, pair.long_s)}):
        yield _ratio(slo, window_s, named, VANTAGE_LABELS, VANTAGE_LEVEL)
    for window_s in sorted({pair.long_s for pair in paging}):
        yield _count(slo, window_s, named, VANTAGE_LABELS, VANTAGE_LEVEL)


def _ratio(slo: Slo, window_s: int, options: RuleOptions, group_labels: str = GROUP_LABELS, level: str = LEVEL) -> Rule:
    window = promql(window_s)
    bad, events = (_selected(f"llmslo_slo_{kind}_total", slo, options) for kind in ("bad_events", "events"))
    return {
        "record": f"{level}:llmslo_slo_bad_events:ratio_rate{window}",
        "expr": f"sum by ({group_labels}) (rate({bad}[{window}]))\n/\n(sum by ({group_labels}) (rate({events}[{window}])) > 0)\n",
        "labels": {"slo": slo.name},  # two rules of a file must differ in their labels
    }


def _count(slo: Slo, window_s: int, options: RuleOptions, group_labels: str = GROUP_LABELS, level: str = LEVEL) -> Rule:
    window = promql(window_s)
    events = _selected("llmslo_slo_events_total", slo, options)
    return {
        "record": f"{level}:llmslo_slo_events:increase{window}",
        "expr": f"sum by ({group_labels}) (increase({events}[{window}]))\n",
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


def _burns(slo: Slo, pair: Pair, uses: Sequence[JudgedStream], level: str = LEVEL) -> str:
    """Whether the budget burns in both windows, on enough events: of all vantages together, or of each."""
    share = _number(pair.burn * slo.error_budget_ratio)
    return "\nand\n".join(
        (
            f"{_ratio_name(pair.long_s, slo, level)} > {share}",
            f"{_ratio_name(pair.short_s, slo, level)} > {share}",
            f"{_count_name(pair.long_s, slo, level)} >= {guard(slo, pair, uses)}",
        )
    )


def _pages(slo: Slo, pair: Pair, uses: Sequence[JudgedStream]) -> str:
    """Whether it burns as seen from more than half of the vantages now; without vantages whether it burns."""
    share = _number(pair.burn * slo.error_budget_ratio)
    now = _ratio_name(pair.short_s, slo, VANTAGE_LEVEL)
    return f"{_burns(slo, pair, uses)}\nunless on (target, workload)\n(avg by (target, workload) ({now} > bool {share}) <= 0.5)"


def _burn_from_vantage(slo: Slo, pair: Pair, uses: Sequence[JudgedStream]) -> Alert:
    share = pair.burn * slo.error_budget_ratio
    long, short = promql(pair.long_s), promql(pair.short_s)
    return Alert(
        "LLMErrorBudgetBurnFromVantage",
        "warning",
        f"{_burns(slo, pair, uses, VANTAGE_LEVEL)}\nunless on (target, workload)\n({_pages(slo, pair, uses)})\n",
        "5m",  # an outage is not noticed at the same time everywhere, and is a page
        f"{{{{ $labels.target }}}} burns the error budget of SLO {slo.name} {_faster(pair.burn)} "
        "from vantage {{ $labels.vantage }}",
        "{{ $value | humanizePercentage }} of the events of workload {{ $labels.workload }} that this vantage recorded in the last "
        f"{long} were bad, and over {format_percent(share)} of those in the last {short} ({judged(slo)}; "
        f"budget {format_percent(slo.error_budget_ratio)}). All vantages together do not page: look at the way from this one first.",
        (("slo", slo.name), ("long", long), ("short", short)),
    )


def _burn(slo: Slo, pair: Pair, uses: Sequence[JudgedStream], options: RuleOptions) -> Alert:
    share = pair.burn * slo.error_budget_ratio
    long, short = promql(pair.long_s), promql(pair.short_s)
    known = escaped(_count_name(pair.long_s, slo).replace("}", ",target=%q,workload=%q}"))
    allowed_s = _number(
        slo.error_budget_ratio * round(slo.window_s)
    )  # how long a whole budget lasts if every event is bad
    return Alert(
        "LLMErrorBudgetBurn",
        pair.severity,
        (_pages if pair.severity == "critical" else _burns)(slo, pair, uses) + "\n",
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
