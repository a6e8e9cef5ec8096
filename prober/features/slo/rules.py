"""Recording rules and alerts, built from the declaration that also drives the run-time counters.

Ratios are ratios of sums over all replicas of the prober, never means of ratios. Without events there is no ratio, so an SLO
without data is neither met nor missed. Burn-rate windows: prober.measure.burn_rate_windows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from prober.features.slo import alerts
from prober.features.slo.alerts import Alert, likely_cause_template
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
    "quality": "correct answers to golden prompts",
}


@dataclass(frozen=True, slots=True)
class Options:
    """Options of `prober rules`.

    selector: label matchers of the prober's series.
    labels: added to every alert.
    runbook_url, dashboard_url: bases without a trailing slash.
    """

    selector: str = 'job="llm-slo-prober"'
    labels: tuple[tuple[str, str], ...] = ()
    runbook_url: str = "http://llm-slo-prober:9742/runbooks"
    dashboard_url: str = "http://grafana:3000"
    stateless_drift: bool = False


def groups(uses: Mapping[Slo, Sequence[JudgedStream]], options: Options) -> list[dict[str, Any]]:
    """All rule groups, in the format of Prometheus rule files."""
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
        rules += [_alert(_burn(slo, pair, streams, options), options) for pair in pairs(slo.window_s)]
        if percentile:
            rules.append(_alert(_percentile(slo, *percentile, options), options))
        rules.append(_alert(_no_data(slo, streams, options), options))
        slo_groups.append({"name": f"llm-slo-{slo.name}", "rules": rules})
        # Over the whole SLO window: expensive to evaluate and slow to change.
        budget = [_budget(slo, options), *_states(slo, streams, options)]
        slo_groups.append({"name": f"llm-slo-{slo.name}-budget", "interval": "5m", "rules": budget})
    common = [_alert(alert, options) for alert in alerts.prober_alerts(options.selector)]
    common += [_alert(alert, options) for alert in alerts.drift_alerts(options.selector)]
    common += [_alert(alert, options) for alert in alerts.engine_alerts(options.selector)]
    common += [_alert(alert, options) for alert in alerts.capacity_alerts(options.selector)]
    common += _per_gpu(options)
    if options.stateless_drift:
        common.append(_alert(alerts.stateless_drift_alert(options.selector), options))
    return [*slo_groups, {"name": "llm-slo-prober", "rules": common}]


def as_operator(rule_groups: list[dict[str, Any]], name: str = "llm-slo-prober") -> dict[str, Any]:
    """The groups as a PrometheusRule of the Prometheus operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/name": name}},
        "spec": {"groups": rule_groups},
    }


def _per_gpu(options: Options) -> list[dict[str, Any]]:
    """Tokens, energy and cost per GPU. Replicas of the prober see the same engine, so max, not sum."""
    tokens = f"max by (target) (rate(llmslo_engine_generation_tokens_total{{{options.selector}}}[5m]))"
    no_partitions = ',gpu!~".+:.+"'  # a partition is listed in addition to its GPU
    gpus = " or ".join(
        f"count by (target) (group by (target, gpu) (llmslo_gpu_info{{{options.selector}{more}}}))"
        for more in (no_partitions, "")
    )
    price = f"max by (target) (llmslo_gpu_price_dollars_per_hour{{{options.selector}}})"
    power = f"max by (target, gpu) (rate(llmslo_gpu_energy_joules_total{{{options.selector}}}[5m]))"
    return [
        {"record": "target:llmslo_engine_generation_tokens_per_gpu:rate5m", "expr": f"{tokens}\n/\n({gpus})\n"},
        {
            "record": "target:llmslo_gpu_energy_joules_per_1k_tokens:rate5m",
            "expr": f"1000 * sum by (target) ({power})\n/\n({tokens} > 0)\n",
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
        "expr": f"sum by ({GROUP_LABELS}) (rate({bad}[{window}]))\n/\n(sum by ({GROUP_LABELS}) (rate({events}[{window}])) > 0)\n",
        "labels": {"slo": slo.name},  # two rules of a file must differ in their labels
    }


def _count(slo: Slo, window_s: int, options: Options) -> dict[str, Any]:
    window = promql(window_s)
    events = _selected("llmslo_slo_events_total", slo, options)
    return {
        "record": f"{LEVEL}:llmslo_slo_events:increase{window}",
        "expr": f"sum by ({GROUP_LABELS}) (increase({events}[{window}]))\n",
        "labels": {"slo": slo.name},
    }


def _budget(slo: Slo, options: Options) -> dict[str, Any]:
    window = promql(slo.window_s)
    bad, events = (_selected(f"llmslo_slo_{kind}_total", slo, options) for kind in ("bad_events", "events"))
    ratio = f"sum by ({GROUP_LABELS}) (increase({bad}[{window}]))\n  /\n  (sum by ({GROUP_LABELS}) (increase({events}[{window}])) > 0)"
    return {
        "record": f"{LEVEL}:llmslo_slo_error_budget_remaining:ratio",
        "expr": f"1 - (\n  {ratio}\n) / {_number(slo.error_budget_ratio)}\n",
        "labels": {"slo": slo.name},
    }


def _states(slo: Slo, uses: Sequence[JudgedStream], options: Options) -> Iterator[dict[str, Any]]:
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


def _burn(slo: Slo, pair: Pair, uses: Sequence[JudgedStream], options: Options) -> Alert:
    share = pair.burn * slo.error_budget_ratio
    long, short = promql(pair.long_s), promql(pair.short_s)
    tests = (
        f"{_ratio_name(pair.long_s, slo)} > {_number(share)}",
        f"{_ratio_name(pair.short_s, slo)} > {_number(share)}",
        f"{_count_name(pair.long_s, slo)} >= {guard(slo, pair, uses)}",
    )
    known = _count_name(pair.long_s, slo).replace("}", ",target=%q,workload=%q}").replace('"', '\\"')
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


def _percentile(slo: Slo, window_s: int, events: int, options: Options) -> Alert:
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


def _no_data(slo: Slo, uses: Sequence[JudgedStream], options: Options) -> Alert:
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


def _alert(alert: Alert, options: Options) -> dict[str, Any]:
    path = (
        "/d/llm-slo?var-target={{ $labels.target | urlquery }}" if "$labels.target" in alert.summary else "/d/llm-slo"
    )
    return {
        "alert": alert.name,
        "expr": alert.expr,
        **({"for": alert.wait_for} if alert.wait_for else {}),
        **({"keep_firing_for": alert.keep_firing_for} if alert.keep_firing_for else {}),
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
