"""Expressions that several panels share. Each series is narrowed to the chosen targets, and replicas of the prober are summed or,
where each says the same of the target, the largest is taken."""

TARGET = 'target=~"$target"'
PROBES = f'{TARGET},workload=~"$workload"'
INSTANCE = 'instance=~"$instance"'
LEVEL = "target, workload"
WINDOW = "$window"  # of quantiles: chosen by the reader, since a p99 takes a thousand samples
STEP = "$__rate_interval"
RECORDED = "target_workload_slo:llmslo_slo"
BUDGET_LEFT = f"{RECORDED}_error_budget_remaining:ratio"
SLO_STATE = f"{RECORDED}_state:window"
STATES = ("ready", "pending", "starting", "draining", "failing")  # by how much a person should care
ENOUGH_P99 = 1000
WHOLE_GPUS = f'group by (target, gpu) (llmslo_gpu_info{{{TARGET},gpu!~".+:.+"}})'  # partitions stand beside their GPU


def gauge(name: str, by: str = "target", more: str = "", select: str = TARGET) -> str:
    """What all replicas of the prober say of a target, once."""
    return f"max by ({by}) ({name}{{{select}{more}}})"


def rate(name: str, by: str = "target", more: str = "", select: str = TARGET, window: str = STEP) -> str:
    """Of a counter of the engine's, which every replica reads the same: the largest, not the sum."""
    return f"max by ({by}) (rate({name}{{{select}{more}}}[{window}]))"


def increase(name: str, by: str = LEVEL, more: str = "", select: str = PROBES, window: str = STEP) -> str:
    """Of a counter of the prober's own doing: replicas add up."""
    return f"sum by ({by}) (increase({name}{{{select}{more}}}[{window}]))"


def quantile(
    q: float, histogram: str, by: str = LEVEL, select: str = PROBES, window: str = WINDOW, offset: str = ""
) -> str:
    """From classic buckets, or from native ones where a Prometheus keeps only those. Without observations none, not NaN."""
    classic = f"sum by ({by}, le) (rate({histogram}_bucket{{{select}}}[{window}]{offset}))"
    native = f"sum by ({by}) (rate({histogram}{{{select}}}[{window}]{offset}))"
    return f"((histogram_quantile({q:g}, {classic}) or histogram_quantile({q:g}, {native})) >= 0)"


def samples(histogram: str, by: str = LEVEL, select: str = PROBES, window: str = WINDOW) -> str:
    """How many observations a quantile rests on."""
    classic = increase(f"{histogram}_count", by, select=select, window=window)
    return f"({classic} or histogram_count({increase(histogram, by, select=select, window=window)}))"


def answering(expr: str) -> str:
    """Without targets that fail every probe: what was answered some time ago says nothing of them now."""
    return f'{expr} unless on (target) max by (target) (llmslo_target_state{{{TARGET},state="failing"}}) == 1'


def buckets(histogram: str, select: str = PROBES) -> str:
    """For a heatmap."""
    classic = f"sum by (le) (increase({histogram}_bucket{{{select}}}[{STEP}]))"
    return f"{classic} or on () sum(increase({histogram}{{{select}}}[{STEP}]))"


def limit(signal: str, by: str = "target, workload, slo") -> str:
    """Thresholds of the SLOs on the signal, whatever they are called; the strictest where `by` leaves several."""
    return f'min by ({by}) (llmslo_slo_threshold_seconds{{{PROBES},signal="{signal}"}})'


def worst(series: str, codes: tuple[str, ...], label: str, by: str, more: str = "") -> str:
    """The place in `codes` of what `label` says, the last of them where several do: for mappings to words."""
    select = PROBES if "workload" in by else TARGET
    places = (f'{place} * ({series}{{{select},{label}="{code}"{more}}} == 1)' for place, code in enumerate(codes))
    return f"max by ({by}) ({' or '.join(places)})"


def judged(select: str = PROBES) -> str:
    """Latencies with a baseline to be judged by: 1 for each. While it is learnt there is neither drift nor none."""
    return f'max by (target, workload, signal) (llmslo_drift_phase{{{select},phase!="learning"}}) == 1'


def slo_state(by: str) -> str:
    """0 met, 1 no data, 2 missed: the worst."""
    return worst(SLO_STATE, ("met", "no_data", "missed"), "state", by)


def target_state() -> str:
    """A place in STATES."""
    return worst("llmslo_target_state", STATES, "state", "target")
