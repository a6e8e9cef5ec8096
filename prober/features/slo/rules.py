"""Recording rules and alerts as values, from the same declaration that the run-time counters come from.

Ratios are ratios of sums over all replicas of the prober, never means of ratios. What has no events has no ratio, so that no data
is neither met nor missed. Burn-rate windows: see prober.measure.burn_rate_windows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from prober.features.slo import alerts
from prober.features.slo.alerts import Alert, likely_cause
from prober.features.slo.firing import guard, percentile_events, percentile_window, silence_s
from prober.measure.burn_rate_windows import Pair, pairs, promql
from prober.measure.objective import JudgedStream, Slo, format_percent

BY = "target, workload, slo"
LEVEL = "target_workload_slo"
WORDS = {
    "ttft": "TTFT",
    "ttft_answer": "TTFT of the answer",
    "tpot": "TPOT",
    "itl": "ITL",
    "e2e": "E2E latency",
    "success": "success",
    "quality": "right answers to golden prompts",
}


@dataclass(frozen=True, slots=True)
class Options:
    """selector: label matchers of the prober's series; labels: added to every alert; the URLs are bases without a last slash."""

    selector: str = 'job="llm-slo-prober"'
    labels: tuple[tuple[str, str], ...] = ()
    runbook_url: str = "http://llm-slo-prober:9742/runbooks"
    dashboard_url: str = "http://grafana:3000"
    stateless_drift: bool = False


def groups(uses: Mapping[Slo, Sequence[JudgedStream]], options: Options) -> list[dict[str, Any]]:
    """All rule groups, as Prometheus's rule files have them."""
    found = []
    for slo, using in uses.items():
        windows = sorted({window for pair in pairs(slo.window_s) for window in (pair.short_s, pair.long_s)})
        rules = [_ratio(slo, window, options) for window in windows]
        counted = {pair.long_s for pair in pairs(slo.window_s)}
        percentile = percentile_window(slo, using)
        if percentile:
            counted.add(percentile[0])
            if percentile[0] not in windows:
                rules.append(_ratio(slo, percentile[0], options))
        rules += [_count(slo, window, options) for window in sorted(counted)]
        rules += [_alert(_burn(slo, pair, using, options), options) for pair in pairs(slo.window_s)]
        if percentile:
            rules.append(_alert(_percentile(slo, *percentile, options), options))
        rules.append(_alert(_no_data(slo, using, options), options))
        found.append({"name": f"llm-slo-{slo.name}", "rules": rules})
        # Over the whole window: dear to evaluate, and slow to change.
        budget = [_budget(slo, options), *_states(slo, using, options)]
        found.append({"name": f"llm-slo-{slo.name}-budget", "interval": "5m", "rules": budget})
    own = [_alert(alert, options) for alert in alerts.of_the_prober(options.selector)]
    own += [_alert(alert, options) for alert in alerts.of_drift(options.selector)]
    own += [_alert(alert, options) for alert in alerts.of_the_engine(options.selector)]
    own += [_alert(alert, options) for alert in alerts.of_the_capacity(options.selector)]
    own += _per_gpu(options)
    if options.stateless_drift:
        own.append(_alert(alerts.stateless_drift(options.selector), options))
    return [*found, {"name": "llm-slo-prober", "rules": own}]


def as_operator(rule_groups: list[dict[str, Any]], name: str = "llm-slo-prober") -> dict[str, Any]:
    """The groups as the Prometheus operator's PrometheusRule."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": name}},
        "spec": {"groups": rule_groups},
    }


def _per_gpu(options: Options) -> list[dict[str, Any]]:
    """What the engine does for its GPUs: replicas of the prober see the same engine, so the largest is taken, not the sum."""
    tokens = f"max by (target) (rate(llmslo_engine_generation_tokens_total{{{options.selector}}}[5m]))"
    whole = ',gpu!~".+:.+"'  # partitions stand beside their GPU
    gpus = " or ".join(
        f"count by (target) (group by (target, gpu) (llmslo_gpu_info{{{options.selector}{more}}}))"
        for more in (whole, "")
    )
    price = f"max by (target) (llmslo_gpu_price_dollars_per_hour{{{options.selector}}})"
    each = f"max by (target, gpu) (rate(llmslo_gpu_energy_joules_total{{{options.selector}}}[5m]))"
    return [
        {"record": "target:llmslo_engine_generation_tokens_per_gpu:rate5m", "expr": f"{tokens}\n/\n({gpus})\n"},
        {
            "record": "target:llmslo_gpu_energy_joules_per_1k_tokens:rate5m",
            "expr": f"1000 * sum by (target) ({each})\n/\n({tokens} > 0)\n",
        },
        {
            "record": "target:llmslo_gpu_cost_dollars_per_1k_tokens:rate5m",
            "expr": f"1000 / 3600 * {price} * ({gpus})\n/\n({tokens} > 0)\n",
        },
    ]


def _ratio_name(window_s: int, slo: Slo) -> str:
    return f'{LEVEL}:llmslo_slo_bad_events:ratio_rate{promql(window_s)}{{slo="{slo.name}"}}'


def _count_name(window_s: int, slo: Slo) -> str:
    return f'{LEVEL}:llmslo_slo_events:increase{promql(window_s)}{{slo="{slo.name}"}}'


def _selected(series: str, slo: Slo, options: Options) -> str:
    return f'{series}{{{options.selector},slo="{slo.name}"}}'


def _ratio(slo: Slo, window_s: int, options: Options) -> dict[str, Any]:
    window = promql(window_s)
    bad, events = (_selected(f"llmslo_slo_{kind}_total", slo, options) for kind in ("bad_events", "events"))
    return {
        "record": f"{LEVEL}:llmslo_slo_bad_events:ratio_rate{window}",
        "expr": f"sum by ({BY}) (rate({bad}[{window}]))\n/\n(sum by ({BY}) (rate({events}[{window}])) > 0)\n",
        "labels": {"slo": slo.name},  # as the series has it: no two rules of a file are told apart by less
    }


def _count(slo: Slo, window_s: int, options: Options) -> dict[str, Any]:
    window = promql(window_s)
    events = _selected("llmslo_slo_events_total", slo, options)
    return {
        "record": f"{LEVEL}:llmslo_slo_events:increase{window}",
        "expr": f"sum by ({BY}) (increase({events}[{window}]))\n",
        "labels": {"slo": slo.name},
    }


def _budget(slo: Slo, options: Options) -> dict[str, Any]:
    window = promql(slo.window_s)
    bad, events = (_selected(f"llmslo_slo_{kind}_total", slo, options) for kind in ("bad_events", "events"))
    ratio = f"sum by ({BY}) (increase({bad}[{window}]))\n  /\n  (sum by ({BY}) (increase({events}[{window}])) > 0)"
    return {
        "record": f"{LEVEL}:llmslo_slo_error_budget_remaining:ratio",
        "expr": f"1 - (\n  {ratio}\n) / {_number(slo.error_budget_ratio)}\n",
        "labels": {"slo": slo.name},
    }


def _states(slo: Slo, uses: Sequence[JudgedStream], options: Options) -> Iterator[dict[str, Any]]:
    """met, missed or no_data: exactly one of them is 1. A prober that does not trust itself has no data."""
    record = f"{LEVEL}:llmslo_slo_state:window"
    left = f'{LEVEL}:llmslo_slo_error_budget_remaining:ratio{{slo="{slo.name}"}}'
    objective = _selected("llmslo_slo_objective_ratio", slo, options)
    trusted = f"max by (instance) (llmslo_trusted{{{options.selector}}})"
    events = f"increase({_selected('llmslo_slo_events_total', slo, options)}[{promql(silence_s(uses))}])"
    seen = f"sum by ({BY}) ({events} * on (instance) group_left () {trusted}) > 0"
    yield {
        "record": record,
        "expr": f"(max by ({BY}) ({objective}) > bool 0)\nunless ({seen})\n",
        "labels": {"slo": slo.name, "state": "no_data"},
    }
    for state, test in (("met", ">= 0"), ("missed", "< 0")):
        yield {
            "record": record,
            "expr": f"count by ({BY}) ({left} {test})\nand\n({seen})\n",
            "labels": {"slo": slo.name, "state": state},
        }


def _burn(slo: Slo, pair: Pair, uses: Sequence[JudgedStream], options: Options) -> Alert:
    share = pair.burn * slo.error_budget_ratio
    long, short = promql(pair.long_s), promql(pair.short_s)
    tests = (
        f"{_ratio_name(pair.long_s, slo)} > {_number(share)}",
        f"{_ratio_name(pair.short_s, slo)} > {_number(share)}",
        f"{_count_name(pair.long_s, slo)} >= {guard(slo, pair, uses)}",
    )
    known = _count_name(pair.long_s, slo).replace("}", ",target=%q,workload=%q}").replace('"', '\\"')
    allowed_s = _number(slo.error_budget_ratio * round(slo.window_s))  # of nothing but bad events
    return Alert(
        "LLMErrorBudgetBurn",
        pair.severity,
        "\nand\n".join(tests) + "\n",
        "1m",  # a series that has just begun is extrapolated most; after a minute one bad probe is one of many
        f"{{{{ $labels.target }}}} burns the error budget of SLO {slo.name} {_faster(pair.burn)}",
        f'{{{{ $value | humanizePercentage }}}} of {{{{ range printf "{known}" $labels.target $labels.workload | query }}}}some '
        "{{ printf `%.0f` .Value }}{{ else }}the{{ end }} events of workload {{ $labels.workload }} that are known of the last "
        f"{long} were bad ({judged(slo)}; {format_percent(slo.error_budget_ratio)} may be), and of those of the last {short} "
        f"over {format_percent(share)}. "
        f'At this rate a whole budget of {promql(slo.window_s)} lasts {{{{ range printf "{allowed_s} / %.6g" $value | query }}}}'
        f"{{{{ .Value | humanizeDuration }}}}{{{{ end }}}}.{likely_cause(options.selector)}",
        (("slo", slo.name), ("long", long), ("short", short)),
    )


def _faster(burn: Decimal) -> str:
    return "faster than it allows" if burn == 1 else f"over {burn} times as fast as it allows"


def _percentile(slo: Slo, window_s: int, events: int, options: Options) -> Alert:
    window = promql(window_s)
    return Alert(
        "LLMPercentileSLOBreach",
        "warning",
        f"{_ratio_name(window_s, slo)} > {_number(slo.error_budget_ratio)}\nand\n{_count_name(window_s, slo)} >= {events}\n",
        "",
        f"{{{{ $labels.target }}}} misses the percentile of SLO {slo.name}",
        f"{{{{ $value | humanizePercentage }}}} of the events of workload {{{{ $labels.workload }}}} in the last {window} were bad "
        f"({judged(slo)}; {format_percent(slo.error_budget_ratio)} may be). There were at least {percentile_events(slo):,} of "
        f"them, enough to judge this percentile.{likely_cause(options.selector)}",
        (("slo", slo.name),),
    )


def _no_data(slo: Slo, uses: Sequence[JudgedStream], options: Options) -> Alert:
    window = promql(silence_s(uses))
    objective = _selected("llmslo_slo_objective_ratio", slo, options)
    events = _selected("llmslo_slo_events_total", slo, options)
    slowest = min(use.rate_per_s for use in uses)
    # Refused connections of an engine that has never answered are its start, up to a bound: LLMTargetFailing comes after it.
    starting = f"max by (target) (llmslo_target_starting_until_timestamp_seconds{{{options.selector}}}) > time()"
    wait = promql(max(300, 60 * -(-5 // slowest // 60)))  # the first successes of a cold engine are no events
    return Alert(
        "LLMSLONoData",
        "warning",
        f"(max by ({BY}) ({objective}) > bool 0)\nunless\n(sum by ({BY}) (increase({events}[{window}])) > 0)\n"
        f"unless on (target)\n({starting})\n",
        wait,
        f"{{{{ $labels.target }}}} gives no data for SLO {slo.name}",
        f"Not one event of workload {{{{ $labels.workload }}}} in {window}, where some {slowest * silence_s(uses):.0f} were due: "
        "the SLO is neither met nor missed.",
        (("slo", slo.name),),
    )


def judged(slo: Slo) -> str:
    """What a good event is, in words: `TTFT up to 500ms`."""
    if slo.threshold_s is None:
        return WORDS[slo.signal]
    return f"{WORDS[slo.signal]} up to {slo.threshold_s * 1e3:g}ms"


def _alert(alert: Alert, options: Options) -> dict[str, Any]:
    path = (
        "/d/llm-slo?var-target={{ $labels.target | urlquery }}" if "$labels.target" in alert.summary else "/d/llm-slo"
    )
    return {
        "alert": alert.name,
        "expr": alert.expr,
        **({"for": alert.wait} if alert.wait else {}),
        **({"keep_firing_for": alert.keep} if alert.keep else {}),
        "labels": {"severity": alert.severity, **dict(alert.labels), **dict(options.labels)},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": f"{options.runbook_url}/{quote(alert.name)}",
            "dashboard_url": f"{options.dashboard_url}{path}",
        },
    }


def _number(value: Decimal) -> str:
    return f"{value.normalize():f}"


def example_rules() -> Iterator[dict[str, Any]]:
    """The rules of one SLO: every name that rules record, with its labels."""
    slo = Slo("ttft", "ttft", 0.5, Decimal("0.99"), 30 * 86_400.0)
    for group in groups({slo: [JudgedStream("t", "w", 0.2, 32.0, 48)]}, Options()):
        yield from group["rules"]
