"""Recording rules and alerts of the SLOs, from the declaration that also drives the run-time counters.

Ratios are ratios of sums over all replicas of the prober, never means of ratios. Without events there is no ratio, so an SLO
without data is neither met nor missed. Burn-rate windows: prober.measure.burn_rate_windows.

Every alert is joined with the declaration: rules look back over hours and days, and a target or SLO that is no longer declared must
alert nobody.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal

from prober.exposition.alerting import (
    Alert,
    Link,
    Rule,
    RuleOptions,
    escaped,
    likely_cause_template,
    top_failure_template,
)
from prober.features.slo import messages
from prober.features.slo.compliance import compliance_queries, percentile_events, silence_s
from prober.features.slo.firing import chance, guard, percentile_window
from prober.measure.burn_rate_windows import Pair, pairs, promql
from prober.measure.objective import JudgedStream, Slo, format_percent

GROUP_LABELS = "target, workload, slo"
LEVEL = "target_workload_slo"
VANTAGE_LABELS = "target, workload, vantage, slo"
VANTAGE_LEVEL = "target_workload_vantage_slo"
RULE_OBJECTIVE = "slo:llmslo_rule_objective:ratio"
MIN_FLIPS = 4  # changes of "fails every probe" in 15 minutes; an outage has two
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
    """Three rule groups per SLO, in the format of Prometheus rule files: what pages, what can wait, and the whole window.

    They are apart because of their cost, which `bench.rule_cost` measures.
    """
    slo_groups = []
    for slo, streams in uses.items():
        paging, waiting = (
            [pair for pair in pairs(slo.window_s) if pair.severity == severity] for severity in ("critical", "warning")
        )
        percentile = percentile_window(slo, streams)
        counted = {pair.long_s for pair in (*paging, *waiting)} | ({percentile[0]} if percentile else set())
        soon = _lengths(paging)
        later = (_lengths(waiting) | counted) - soon  # a window of both is recorded once
        pages = [*_declared(slo, options), *_windows(slo, soon, counted, options), *_by_vantage(slo, paging, options)]
        pages += _states(slo, streams, options)
        alerts = [_burn(slo, pair, streams, options) for pair in paging]
        alerts += [_burn_from_vantage(slo, pair, streams) for pair in paging]
        alerts.append(_no_data(slo, streams, options))
        pages += [alert.as_rule(options) for alert in alerts]
        slow = list(_windows(slo, later, counted, options))
        slow += [_burn(slo, pair, streams, options).as_rule(options) for pair in waiting]
        if percentile:
            slow.append(_percentile(slo, *percentile, options).as_rule(options))
        whole = [*_tiles(slo, options), *_whole_window(slo, options)]
        slo_groups += [
            {"name": f"llm-slo-{slo.name}", "rules": pages},
            {"name": f"llm-slo-{slo.name}-slow", "interval": options.slow, "rules": slow},
            {"name": f"llm-slo-{slo.name}-budget", "interval": options.slow, "rules": whole},
        ]
    return slo_groups


def _lengths(chosen: Sequence[Pair]) -> set[int]:
    return {window for pair in chosen for window in (pair.short_s, pair.long_s)}


def stale_alert(selector: str) -> Alert:
    """Rules that were written from another declaration than the prober has, or from none."""
    declared = f"max by (target, workload, slo) (llmslo_slo_objective_ratio{{{selector}}})"
    return Alert(
        "LLMRulesStale",
        "warning",
        f"{declared} unless on (slo) {RULE_OBJECTIVE}\nor\n{declared} != on (slo) group_left () max by (slo) ({RULE_OBJECTIVE})\n",
        "15m",  # a prober reads its configuration again before the rules written from it are loaded
        "The rules for SLO {{ $labels.slo }} of {{ $labels.target }} are missing or out of date",
        "The prober judges {{ $value | humanizePercentage }} of the events of workload {{ $labels.workload }}; Prometheus has no rules "
        "for this SLO, or rules for another objective. Its budget is not watched as declared. Write them again with `prober rules`.",
        link=Link("slo", ("target", "workload", "slo")),
    )


def _ratio_name(window_s: int, slo: Slo, level: str = LEVEL) -> str:
    return f'{level}:llmslo_slo_bad_events:ratio_rate{promql(window_s)}{{slo="{slo.name}"}}'


def _count_name(window_s: int, slo: Slo, level: str = LEVEL) -> str:
    return f'{level}:llmslo_slo_events:increase{promql(window_s)}{{slo="{slo.name}"}}'


def _selected(series: str, slo: Slo, options: RuleOptions) -> str:
    return f'{series}{{{options.selector},slo="{slo.name}"}}'


def _declared(slo: Slo, options: RuleOptions) -> Iterator[Rule]:
    """The objective of every declared SLO, and that of these rules, by which LLMRulesStale compares both.

    A declaration outlives a prober that is not scraped by five minutes, so that its restart ends no alert. One that disappears while
    its prober is scraped is gone.
    """
    objective = _selected("llmslo_slo_objective_ratio", slo, options)
    alive = f"up{{{options.selector}}} == 1"
    yield {
        "record": f"{LEVEL}:llmslo_slo_objective:ratio",
        "expr": f"max by ({GROUP_LABELS}) ({objective} or (last_over_time({objective}[5m]) unless on (instance) {alive}))\n",
        "labels": {"slo": slo.name},
    }
    yield {"record": RULE_OBJECTIVE, "expr": f"vector({_number(slo.objective)})\n", "labels": {"slo": slo.name}}


def _declaration(slo: Slo, options: RuleOptions) -> str:
    return f"max by ({GROUP_LABELS}) ({_selected('llmslo_slo_objective_ratio', slo, options)})"


def _is_declared(slo: Slo) -> str:
    return f'{LEVEL}:llmslo_slo_objective:ratio{{slo="{slo.name}"}}'


def _windows(
    slo: Slo,
    windows: Collection[int],
    counted: Collection[int],
    options: RuleOptions,
    labels: str = GROUP_LABELS,
    level: str = LEVEL,
) -> Iterator[Rule]:
    """Shares of bad events over these windows; of some also the number of events."""
    for window_s in sorted(windows):
        yield from _window(slo, window_s, options, labels, level, is_counted=window_s in counted)


def _by_vantage(slo: Slo, paging: Sequence[Pair], options: RuleOptions) -> Iterator[Rule]:
    """What the pages need of each vantage; no series of probers without one."""
    named = replace(options, selector=f'{options.selector},vantage!=""')
    counted = {pair.long_s for pair in paging}
    return _windows(slo, _lengths(paging), counted, named, VANTAGE_LABELS, VANTAGE_LEVEL)


def _window(
    slo: Slo,
    window_s: int,
    options: RuleOptions,
    group_labels: str,
    level: str,
    *,
    is_counted: bool,
) -> Iterator[Rule]:
    """Share of bad events over a window; if it is counted, also its events, which then are read once for both."""
    window = promql(window_s)
    bad, events = (_selected(f"llmslo_slo_{kind}_total", slo, options) for kind in ("bad_events", "events"))
    bad, events = (f"sum by ({group_labels}) (increase({series}[{window}]))" for series in (bad, events))
    labels = {"slo": slo.name}  # two rules of a file must differ in their labels
    if is_counted:
        yield {"record": f"{level}:llmslo_slo_events:increase{window}", "expr": f"{events}\n", "labels": labels}
        events = _count_name(window_s, slo, level)
    share = f"{bad}\n/\n({events} > 0)\n"
    yield {"record": f"{level}:llmslo_slo_bad_events:ratio_rate{window}", "expr": share, "labels": labels}


def _tiles(slo: Slo, options: RuleOptions) -> Iterator[Rule]:
    """Events of a few minutes, every few minutes: their sums are those of the whole window, for a tenth of the samples."""
    for kind in ("events", "bad_events"):
        counter = _selected(f"llmslo_slo_{kind}_total", slo, options)
        yield {
            "record": f"{LEVEL}:llmslo_slo_{kind}:tile{options.slow}",
            "expr": f"sum by ({GROUP_LABELS}) (increase({counter}[{options.slow}]))\n",
            "labels": {"slo": slo.name},
        }


def _whole_window(slo: Slo, options: RuleOptions) -> Iterator[Rule]:
    """Events of the SLO's window, and what is left of its budget. Of declared SLOs only."""
    labels, window = {"slo": slo.name}, promql(slo.window_s)
    for kind in ("events", "bad_events"):
        tiles = f'{LEVEL}:llmslo_slo_{kind}:tile{options.slow}{{slo="{slo.name}"}}'
        yield {
            "record": f"{LEVEL}:llmslo_slo_{kind}:window",
            "expr": f"sum_over_time({tiles}[{window}])\nand\n{_declaration(slo, options)}\n",
            "labels": labels,
        }
    events, bad = (_of_window(kind, slo) for kind in ("events", "bad_events"))
    yield {
        "record": f"{LEVEL}:llmslo_slo_error_budget_remaining:ratio",
        "expr": f"1 - (\n  {bad}\n  /\n  ({events} > 0)\n) / {_number(slo.error_budget_ratio)}\n",
        "labels": labels,
    }


def _of_window(kind: str, slo: Slo) -> str:
    return f'{LEVEL}:llmslo_slo_{kind}:window{{slo="{slo.name}"}}'


def _states(slo: Slo, uses: Sequence[JudgedStream], options: RuleOptions) -> Iterator[Rule]:
    """The compliance with the SLO: exactly one of its words is 1.

    No latency is met by a prober with llmslo_trusted 0. Too few events, and none for a while, are no data.
    """
    record = f"{LEVEL}:llmslo_slo_state:window"
    trusted = f" * on (instance) group_left () max by (instance) (llmslo_trusted{{{options.selector}}})"
    events = f"increase({_selected('llmslo_slo_events_total', slo, options)}[{promql(silence_s(uses))}])"
    queries = compliance_queries(slo, uses, _of_window("events", slo), _of_window("bad_events", slo))
    for state, query in queries.items():
        is_trusted = state == "met" and slo.threshold_s is not None
        seen = f"sum by ({GROUP_LABELS}) ({events}{trusted if is_trusted else ''}) > 0"
        yield {
            "record": record,
            "expr": f"count by ({GROUP_LABELS}) ({query})\nand\n({seen})\nand\n{_is_declared(slo)}\n",
            "labels": {"slo": slo.name, "state": state},
        }
    yield {
        "record": record,
        "expr": f'({_is_declared(slo)} > bool 0)\nunless ignoring (state) {record}{{slo="{slo.name}",state!="no_data"}}\n',
        "labels": {"slo": slo.name, "state": "no_data"},
    }


def _burns(slo: Slo, pair: Pair, uses: Sequence[JudgedStream], level: str = LEVEL) -> str:
    """Whether the budget burns in both windows, on enough events: of all vantages together, or of each.

    What pages is far from the budget. What can wait is near it, so its share must be above it by more than chance.
    """
    share = _number(pair.burn * slo.error_budget_ratio)
    count = _count_name(pair.long_s, slo, level)
    above = share if pair.severity == "critical" else f"({share} + {chance(slo, pair, uses):.4g} / sqrt({count}))"
    return "\nand\n".join(
        (
            f"{_ratio_name(pair.long_s, slo, level)} > {above}",
            f"{_ratio_name(pair.short_s, slo, level)} > {share}",
            f"{count} >= {guard(slo, pair, uses)}",
        )
    )


def _burns_widely(slo: Slo, pair: Pair, uses: Sequence[JudgedStream]) -> str:
    """Whether it burns as seen from more than half of the vantages now; without vantages whether it burns."""
    share = _number(pair.burn * slo.error_budget_ratio)
    now = _ratio_name(pair.short_s, slo, VANTAGE_LEVEL)
    return (
        f"{_burns(slo, pair, uses)}\nand\n{_is_declared(slo)}\n"
        f"unless on (target, workload)\n(avg by (target, workload) ({now} > bool {share}) <= 0.5)"
    )


def _pages(slo: Slo, pair: Pair, uses: Sequence[JudgedStream], options: RuleOptions) -> str:
    """A target that fails every probe has a page of its own, which stands for the bad events of that time too.

    Where the target answers now and then, that page comes and goes, and this one stays.
    """
    paged = f'ALERTS{{alertname="LLMTargetFailing",alertstate="firing"}}[{promql(pair.short_s)}]'
    flips = f'changes(llmslo_target_state{{{options.selector},state="failing"}}[15m])'
    return (
        f"{_burns_widely(slo, pair, uses)}\nunless on (target)\n(max by (target) (max_over_time({paged}))\n"
        f"unless on (target)\nmax by (target) ({flips}) >= {MIN_FLIPS})\n"
        f"unless on (target, workload)\n({_only_one_prober(slo, pair, options)})"
    )


def _only_one_prober(slo: Slo, pair: Pair, options: RuleOptions) -> str:
    """Whether a prober fails every probe that others do not, and the events of those others do not burn the budget."""
    window = promql(pair.short_s)
    odd = f'max by (target, instance) (max_over_time(ALERTS{{alertname="LLMProbersDisagree"}}[{window}]))'
    bad, events = (
        f"sum by (target, workload) (increase({_selected(f'llmslo_slo_{kind}_total', slo, options)}[{window}]) "
        f"unless on (target, instance) {odd})"
        for kind in ("bad_events", "events")
    )
    return f"{bad}\n/\n({events} > 0) <= {_number(pair.burn * slo.error_budget_ratio)}\nand on (target) {odd}"


def _burn_from_vantage(slo: Slo, pair: Pair, uses: Sequence[JudgedStream]) -> Alert:
    share = pair.burn * slo.error_budget_ratio
    long, short = promql(pair.long_s), promql(pair.short_s)
    return Alert(
        "LLMErrorBudgetBurnFromVantage",
        "warning",
        f"{_burns(slo, pair, uses, VANTAGE_LEVEL)}\nand on ({GROUP_LABELS})\n{_is_declared(slo)}\n"
        f"unless on (target, workload)\n({_burns_widely(slo, pair, uses)})\n",
        "5m",  # an outage is not noticed at the same time everywhere, and is a page
        f"{{{{ $labels.target }}}} burns the error budget of SLO {slo.name} {_faster(pair.burn)} "
        "from vantage {{ $labels.vantage }}",
        "{{ $value | humanizePercentage }} of the events of workload {{ $labels.workload }} that this vantage recorded in the last "
        f"{long} were bad, and over {format_percent(share)} of those in the last {short} ({judged(slo)}; "
        f"budget {format_percent(slo.error_budget_ratio)}). All vantages together do not page: look at the way from this one first.",
        (("slo", slo.name), ("long", long), ("short", short)),
        link=Link("target", ("target", "workload"), promql(3 * pair.long_s)),
    )


def _burn(slo: Slo, pair: Pair, uses: Sequence[JudgedStream], options: RuleOptions) -> Alert:
    share = pair.burn * slo.error_budget_ratio
    long, short = promql(pair.long_s), promql(pair.short_s)
    is_page = pair.severity == "critical"
    known = escaped(_count_name(pair.long_s, slo).replace("}", ",target=%q,workload=%q}"))
    recorded = f'{LEVEL}:llmslo_slo_{{}}{{{{slo="{slo.name}",target=%q,workload=%q}}}}'
    return Alert(
        "LLMErrorBudgetBurn",
        pair.severity,
        f"{_pages(slo, pair, uses, options)}\n"
        if is_page
        else f"{_burns(slo, pair, uses)}\nand\n{_declaration(slo, options)}\n",
        "3m"
        if is_page
        else "1m",  # of a target that fails every probe, LLMTargetFailing comes first, and is the only page
        f"{{{{ $labels.target }}}} burns the error budget of SLO {slo.name} {_faster(pair.burn)}",
        f'{{{{ $value | humanizePercentage }}}} of {{{{ range printf "{known}" $labels.target $labels.workload | query }}}}about '
        "{{ printf `%.0f` .Value }}{{ else }}the{{ end }} recorded events of workload {{ $labels.workload }} in the last "
        f"{long} were bad, and over {format_percent(share)} of those in the last {short} ({judged(slo)}; "
        f"budget {format_percent(slo.error_budget_ratio)})."
        f"{messages.budget(slo, escaped(recorded), pair)}{messages.latency(slo, options.selector)}"
        f"{top_failure_template(options.selector, 'workload')}{messages.engine(options.selector)}"
        f"{likely_cause_template(options.selector)}",
        (("slo", slo.name), ("long", long), ("short", short)),
        link=Link("slo", ("target", "workload", "slo"), promql(3 * pair.long_s)),
    )


def _faster(burn: Decimal) -> str:
    return "faster than it allows" if burn == 1 else f"over {burn} times as fast as it allows"


def _percentile(slo: Slo, window_s: int, events: int, options: RuleOptions) -> Alert:
    window = promql(window_s)
    return Alert(
        "LLMPercentileSLOBreach",
        "warning",
        f"{_ratio_name(window_s, slo)} > {_number(slo.error_budget_ratio)}\nand\n{_count_name(window_s, slo)} >= {events}\n"
        f"and\n{_declaration(slo, options)}\n",
        "",
        f"{{{{ $labels.target }}}} misses the percentile of SLO {slo.name}",
        f"{{{{ $value | humanizePercentage }}}} of the events of workload {{{{ $labels.workload }}}} in the last {window} were bad "
        f"({judged(slo)}; budget {format_percent(slo.error_budget_ratio)}). "
        f"The window has at least {percentile_events(slo):,} events, enough for this percentile."
        f"{likely_cause_template(options.selector)}",
        (("slo", slo.name),),
        link=Link("slo", ("target", "workload", "slo"), promql(3 * window_s)),
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
        link=Link("slo", ("target", "workload", "slo")),
    )


def judged(slo: Slo) -> str:
    """Description of a good event, such as `TTFT up to 500ms`."""
    if slo.threshold_s is None:
        return SIGNAL_NAMES[slo.signal]
    return f"{SIGNAL_NAMES[slo.signal]} up to {slo.threshold_s * 1e3:g}ms"


def _number(value: Decimal) -> str:
    return f"{value.normalize():f}"
