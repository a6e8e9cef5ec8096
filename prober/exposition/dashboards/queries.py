"""PromQL expressions that several panels use.

Each expression selects the chosen targets. Values that each replica counts for its own work are summed over the replicas of a
prober; for values that all replicas see alike, the maximum is used.
"""

from prober.exposition.families import AnySeries

Name = AnySeries | str  # a declared series, or the name of a recorded one or one from another feature or exporter
TARGET = 'target=~"$target"'
PROBES = f'{TARGET},workload=~"$workload"'
INSTANCE = 'instance=~"$instance"'
LEVEL = "target, workload"
WINDOW = "$window"  # for quantiles; chosen by the reader, because a p99 needs a thousand samples
STEP = "$__rate_interval"
NOW = "5m"  # for present values: some probes at the default rate
RECENTLY = "15m"  # for the most frequent failure, as in alerts
RECORDED_WINDOW = "2h"  # for the recorded quantiles: a thousand samples at the default rate
RECORDED_SIGNALS = ("ttft", "itl")
RECORDED_P99 = f"workload:llmslo_latency_seconds:p99_{RECORDED_WINDOW}"  # labels: target, workload, signal
RECORDED = "slo:llmslo"  # labels: target, workload, slo
BAD_RATIO = f"{RECORDED}_bad:ratio"  # followed by a window, such as 1h
BUDGET_RATIO = f"{RECORDED}_budget:ratio"
BUDGET_LEFT = "llmslo_slo_error_budget_remaining_ratio"
SLO_STATE = "llmslo_slo_state"
TRAFFIC = "slo:llmslo_traffic"  # labels: target, slo
# States of targets, in order of severity.
STATES = ("ready", "pending", "starting", "draining", "asleep", "over_budget", "rejected", "failing")
MIN_P99_SAMPLES = 1000
# A partition is listed next to its GPU.
WHOLE_GPUS = f'group by (target, gpu) (llmslo_gpu_info{{{TARGET},gpu!~".+:.+"}})'
ALERTING = f'alertname=~"LLM.+",alertstate="firing",{TARGET}'
FIRING = f"ALERTS{{{ALERTING}}}"


def gauge(name: Name, by: str = "target", more: str = "", select: str = TARGET) -> str:
    """Gauge that has the same value in every replica."""
    return f"max by ({by}) ({name}{{{select}{more}}})"


def rate(name: Name, by: str = "target", more: str = "", select: str = TARGET, window: str = STEP) -> str:
    """Rate of an engine's counter, which has the same value in every replica."""
    return f"max by ({by}) (rate({name}{{{select}{more}}}[{window}]))"


def increase(name: Name, by: str = LEVEL, more: str = "", select: str = PROBES, window: str = STEP) -> str:
    """Increase of a counter of the prober's own work, summed over replicas."""
    return f"sum by ({by}) (increase({name}{{{select}{more}}}[{window}]))"


def quantile(
    q: float, histogram: Name, by: str = LEVEL, select: str = PROBES, window: str = WINDOW, offset: str = ""
) -> str:
    """Quantile from classic buckets, or else from native ones; without observations no value instead of NaN."""
    classic = f"sum by ({by}, le) (rate({histogram}_bucket{{{select}}}[{window}]{offset}))"
    native = f"sum by ({by}) (rate({histogram}{{{select}}}[{window}]{offset}))"
    return f"((histogram_quantile({q:g}, {classic}) or histogram_quantile({q:g}, {native})) >= 0)"


def samples(histogram: Name, by: str = LEVEL, select: str = PROBES, window: str = WINDOW) -> str:
    """Number of observations of a histogram, from classic or native buckets."""
    classic = increase(f"{histogram}_count", by, select=select, window=window)
    return f"({classic} or histogram_count({increase(histogram, by, select=select, window=window)}))"


def of_traffic(recorded: str) -> str:
    """Name of the recorded series like `recorded`, such as BUDGET_RATIO, about all requests of the engine."""
    return recorded.replace(RECORDED, TRAFFIC)


def tiles(kind: str, by: str) -> str:
    """Sum of the SLOs' recorded events over the selected time range. kind: `events` or `bad_events`"""
    return f'sum by ({by}) (sum_over_time({{__name__=~"{RECORDED}_{kind}:increase.+",{PROBES}}}[{WINDOW}]))'


def answering(expr: str) -> str:
    """`expr` without targets that answer no probe, whose last latencies are outdated."""
    states = "over_budget|rejected|failing"
    return f'{expr} unless on (target) max by (target) (llmslo_target_state{{{TARGET},state=~"{states}"}}) == 1'


def buckets(histogram: Name, select: str = PROBES) -> str:
    """Increase of each bucket of a histogram, for a heatmap."""
    classic = f"sum by (le) (increase({histogram}_bucket{{{select}}}[{STEP}]))"
    return f"{classic} or on () sum(increase({histogram}{{{select}}}[{STEP}]))"


def limit(signal: str, by: str = "target, workload, slo", at: str = "") -> str:
    """Threshold of the SLOs on `signal`; the strictest if `by` combines several. at: PromQL modifier such as `offset 1d`"""
    return f'min by ({by}) (llmslo_slo_threshold_seconds{{{PROBES},signal="{signal}"}}{at})'


def worst(series: Name, codes: tuple[str, ...], label: str, by: str, select: str = TARGET) -> str:
    """PromQL for the current state, as its index in `codes`; the largest if several states are current.

    codes: values of `label`; `series` is 1 for the current state. Each code is aggregated before the comparison, because joining by all
    labels costs more than reading the samples.
    """
    places = [
        f'{place} * (max by ({by}) ({series}{{{select},{label}="{code}"}}) == 1)' for place, code in enumerate(codes)
    ]
    return f"({' or '.join(reversed(places))})"


def judged(select: str = PROBES) -> str:
    """1 for each latency that drift detection judges; a latency is not judged while its baseline is being learned."""
    return f'max by (target, workload, signal) (llmslo_drift_baseline_state{{{select},state!="learning"}}) == 1'


def slo_state(by: str, select: str = PROBES) -> str:
    """Worst state of the declared SLOs: 0 met, 1 no data, 2 missed. A prober with data overrides one without."""
    missed, met, no_data = (
        f'(max by ({LEVEL}, slo) ({SLO_STATE}{{{select},state="{state}"}}) == 1)'
        for state in ("missed", "met", "no_data")
    )
    return f"max by ({by}) (2 * {missed} or 0 * {met} or {no_data})"


def target_state() -> str:
    """State of each target, as its index in STATES."""
    return worst("llmslo_target_state", STATES, "state", "target")
