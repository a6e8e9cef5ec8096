"""Capacity dashboard: capacity, demand, headroom, forecast and sweeps of one target."""

from typing import Any

from prober.exposition.dashboards.board import Board, annotation
from prober.exposition.dashboards.panels import Panel, Query, counts, now, row, series, stat
from prober.exposition.dashboards.queries import TARGET, WHOLE_GPUS, gauge, increase, limit, rate
from prober.exposition.dashboards.style import (
    BLUE,
    GREEN,
    NEUTRAL,
    ORANGE,
    YELLOW,
    Json,
    band,
    dashed,
    fixed_color,
    on_the_right,
)
from prober.exposition.dashboards.vocabulary import HEADROOM_STEPS

BOUNDS = ("lower", "estimate", "upper")
MIN_HEADROOM = 0.2  # default of `prober plan`, and the threshold of the alert
ANNOTATION = annotation(
    "Sweep",
    "blue",
    'max by (target) (llmslo_sweep_rate_per_second{target=~"$target"}) > 0',
    "{{target}}: a sweep adds load",
)


def board() -> Board:
    """The dashboard `capacity`."""
    rows = {
        "": _now(),
        "Demand against capacity": [_requests(), _tokens(), _headroom(), _kv()],
        "Sweeps": [_knee(), _curve("ttft"), _curve("itl"), _frontier(), _added(), _ended()],
        "GPUs": _gpus(),
    }
    text = "Capacity of one target from sweeps, with its interval; demand, headroom, forecast and cost."
    return Board("capacity", text, rows, one_target=True, variables=("target", "workload"))


def _free(bound: str) -> str:
    """Free share of the capacity."""
    return f'min(llmslo_headroom_ratio{{{TARGET},bound="{bound}"}})'


def _sweep_capacity(bound: str) -> str:
    """Capacity in the sweep's requests per second."""
    return f'min(llmslo_capacity_requests_per_second{{{TARGET},bound="{bound}"}})'


def _capacity(bound: str) -> str:
    """Capacity in production's requests per second."""
    return f"{_sweep_capacity(bound)} * max(llmslo_capacity_shape_ratio{{{TARGET}}})"


def _capacity_tokens(bound: str) -> str:
    return f'min(llmslo_capacity_tokens_per_second{{{TARGET},bound="{bound}"}})'


def _peak(demand: str) -> str:
    """Highest demand in the range, without sweeps and the five minutes after them, over which demand is averaged."""
    swept = f"max_over_time((max(llmslo_sweep_rate_per_second{{{TARGET}}}))[6m:]) > 0"
    return f"max_over_time((max({demand}{{{TARGET}}}) unless {swept})[$__range:1m])"


def _needed() -> str:
    """Instances that the peak needs at the lower bound of the capacity, by requests or by tokens, whichever needs more."""
    requests = f"{_peak('llmslo_demand_requests_per_second')} / ({_capacity('lower')})"
    tokens = f"{_peak('llmslo_demand_tokens_per_second')} / {_capacity_tokens('lower')}"
    either = f'{requests} or label_replace({tokens}, "unit", "tokens", "", "")'
    return f"ceil(max({either}) / {1 - MIN_HEADROOM:g})"


def _now() -> list[Panel]:
    return [
        stat(
            "Headroom",
            "Free share of the capacity, the smaller of requests and tokens, with its interval: at least, estimate, at most. "
            "Bad: the lower bound below 10%. No data: no sweep has found a capacity, or the demand is unknown.",
            "percentunit",
            *(now(_free(bound), name) for bound, name in zip(BOUNDS, ("at least", "estimate", "at most"), strict=True)),
            steps=HEADROOM_STEPS,
            decimals=0,
            width=8,
        ),
        stat(
            "Age of the capacity",
            "Time since a sweep last found a capacity. Bad: longer than the sweep period, or older than the last engine change.",
            "s",
            now(f"time() - max(llmslo_sweep_last_success_timestamp_seconds{{{TARGET}}})"),
            steps=NEUTRAL,
            width=3,
            decimals=0,
        ),
        stat(
            "Capacity exhaustion",
            "Forecast date at which the daily peak of demand reaches the capacity: earliest and estimate. "
            "Bad: within a month.",
            "dateTimeFromNow",
            *(
                now(f'1000 * min(llmslo_capacity_exhaustion_timestamp_seconds{{{TARGET},bound="{bound}"}})', name)
                for bound, name in (("lower", "earliest"), ("estimate", "estimate"))
            ),
            steps=NEUTRAL,
            width=5,
            empty="no forecast",
        ),
        counts(
            "Instances for the peak of this range",
            "Instances of this target needed for the highest demand in this range, at the lower bound of its capacity and with 20% "
            "headroom, and their GPUs. Bad: more than there are. No data: no known capacity or demand, or no GPUs are read.",
            now(_needed(), "instances"),
            now(f"{_needed()} * count({WHOLE_GPUS})", "GPUs"),
            width=5,
        ),
        stat(
            "Sweep load now",
            "Request rate of the running sweep, on top of production. Bad: above 0 while users see errors or delays; "
            "DELETE /api/v1/sweeps stops it.",
            "reqps",
            now(f"max(llmslo_sweep_rate_per_second{{{TARGET}}})"),
            steps=((None, GREEN), (0.000001, YELLOW)),
            decimals=1,
            width=3,
        ),
    ]


def _bounded(title: str, text: str, unit: str, demand: Query, capacity: dict[str, str]) -> Panel:
    return series(
        title,
        text,
        unit,
        *(Query(expr, f"capacity, {bound}") for bound, expr in capacity.items()),
        demand,
        width=12,
        overrides=[
            *band("capacity, lower", "capacity, upper"),
            dashed("capacity, estimate", BLUE, in_legend=True),
            fixed_color("demand", ORANGE, ("custom.lineWidth", 2)),
        ],
    )


def _requests() -> Panel:
    return _bounded(
        "Requests: demand against capacity",
        "Requests per second that the engine finishes, against the estimated knee with its interval, scaled to the length of "
        "production requests. Bad: demand in or above the band.",
        "reqps",
        Query(f"max(llmslo_demand_requests_per_second{{{TARGET}}})", "demand"),
        {bound: _capacity(bound) for bound in BOUNDS},
    )


def _tokens() -> Panel:
    return _bounded(
        "Tokens: demand against capacity",
        "Demand and capacity in prompt and output tokens per second. Bad: demand in or above the band.",
        "short",
        Query(f"max(llmslo_demand_tokens_per_second{{{TARGET}}})", "demand"),
        {bound: _capacity_tokens(bound) for bound in BOUNDS},
    )


def _headroom() -> Panel:
    return series(
        "Headroom over time",
        "Free share of the capacity, the smaller of requests and tokens, with its interval. "
        "Bad: a lower bound near 0 at the daily peak.",
        "percentunit",
        *(Query(_free(bound), bound) for bound in BOUNDS),
        low=None,
        high=1,
        width=12,
        empty="unknown: no sweep has found a capacity, or the demand is unknown",
        overrides=band("lower", "upper"),
    )


def _kv() -> Panel:
    return series(
        "Free KV cache",
        "Free share of the KV cache of the fullest rank, and the size in tokens over all ranks. "
        "Bad: below 10%; preemptions may follow.",
        "percentunit",
        Query(f"1 - {gauge('llmslo_engine_kv_cache_usage_ratio')}", "free"),
        Query(gauge("llmslo_engine_kv_cache_capacity_tokens"), "total tokens"),
        high=1,
        width=12,
        overrides=[on_the_right("total tokens", "short")],
    )


def _knee() -> Panel:
    return series(
        "Capacity found by sweeps",
        "Estimated knee of all SLOs together, for the sweep's own requests, with its interval, and the estimate of each SLO. "
        "Bad: lower than after the previous sweep; the SLO with the lowest estimate sets the capacity.",
        "reqps",
        *(Query(_sweep_capacity(bound), bound) for bound in BOUNDS),
        Query(gauge("llmslo_capacity_requests_per_second", "slo", ',bound="estimate"'), "SLO {{slo}}"),
        width=12,
        empty="no sweep has found a capacity in this range",
        overrides=[*band("lower", "upper"), dashed("SLO .*", "", in_legend=True)],
    )


def _by_stage(*queries: str, names: tuple[str, ...]) -> tuple[list[Query], list[Json]]:
    """Queries and transformations for the rate and values of each stage by ascending rate; equal rates show the largest value."""
    stages = [f"max by (stage) (llmslo_sweep_stage_rate_per_second{{{TARGET}}})", *queries]
    refs = [f"Value #{chr(ord('A') + place)}" for place in range(len(stages))]
    grouped: Json = {refs[0]: {"aggregations": [], "operation": "groupby"}}
    grouped |= {ref: {"aggregations": ["max"], "operation": "aggregate"} for ref in refs[1:]}
    after = [refs[0], *(f"{ref} (max)" for ref in refs[1:])]
    renamed = {"excludeByName": {}, "indexByName": {name: place for place, name in enumerate(after)}}
    return [row(expr) for expr in stages], [
        {"id": "merge", "options": {}},
        {"id": "groupBy", "options": {"fields": grouped}},
        {"id": "sortBy", "options": {"fields": {}, "sort": [{"field": refs[0], "desc": False}]}},
        {"id": "organize", "options": renamed | {"renameByName": dict(zip(after, ("requests per second", *names), strict=True))}},
    ]  # fmt: skip


def _trend(title: str, text: str, unit: str, queries: list[Query], transformations: list[Json], **more: Any) -> Panel:
    lines = series(title, text, unit, *queries)
    options = dict(lines.options)
    custom = {**lines.custom, "showPoints": "always", "pointSize": 7, "lineWidth": 2}
    return Panel(
        "trend", title, text, unit, queries, transformations=transformations,
        options=options, custom=custom, low=0, empty="no sweep yet", **more,
    )  # fmt: skip


def _curve(signal: str) -> Panel:
    """Latency over the request rate."""
    name = {"ttft": "TTFT", "itl": "ITL"}[signal]

    def of(quantile: str) -> str:
        more = f'{TARGET},signal="{signal}",quantile="{quantile}"'
        return f"max by (stage) (llmslo_sweep_stage_latency_seconds{{{more}}})"

    threshold = f"max by (stage) (llmslo_sweep_stage_rate_per_second{{{TARGET}}}) * 0"
    threshold = f"{threshold} + on () group_left () {limit(signal, 'job').replace(' by (job)', '')}"
    quantiles = ("0.5", "0.9", "0.95", "0.99")
    queries, transformations = _by_stage(
        *(of(q) for q in quantiles), threshold, names=("p50", "p90", "p95", "p99", "limit of the SLO")
    )
    return _trend(
        f"{name} over load, last sweep",
        f"{name} in each stage of the last sweep over the total rate; without quantiles that have too few samples. "
        "Bad: a knee at a lower rate than before.",
        "s",
        queries,
        transformations,
        width=12,
        overrides=[dashed("limit of the SLO", in_legend=True), _x_axis()],
    )


def _x_axis() -> Json:
    return {
        "matcher": {"id": "byName", "options": "requests per second"},
        "properties": [{"id": "unit", "value": "reqps"}],
    }


def _frontier() -> Panel:
    queries, transformations = _by_stage(
        f"max by (stage) (llmslo_sweep_stage_tokens_per_second{{{TARGET}}})", names=("output tokens per second",)
    )
    return _trend(
        "Throughput over load, last sweep",
        "Output tokens per second of the sweep's requests at the rate of each stage over the total rate, without stages that were "
        "too short to show it. Bad: it levels off below the rate that you need.",
        "short",
        queries,
        transformations,
        width=12,
        overrides=[_x_axis()],
    )


def _added() -> Panel:
    return series(
        "Load that sweeps added",
        "Request rate of sweeps, on top of production. Bad: a sweep at a busy hour.",
        "reqps",
        Query(f"max(llmslo_sweep_rate_per_second{{{TARGET}}})", "added"),
    )


def _ended() -> Panel:
    def of(name: str, by: str) -> str:
        return f"{increase(name, by, select=TARGET, window='$__range')} > 0"

    return counts(
        "Sweeps by result",
        "Sweeps that ended in this range, by verdict and by stop reason, and refused sweeps. "
        "Bad: void, failed, or refused repeatedly: the capacity becomes outdated.",
        now(of("llmslo_sweeps_total", "verdict"), "{{verdict}}"),
        now(of("llmslo_sweep_stops_total", "reason"), "stopped by {{reason}}"),
        now(of("llmslo_sweeps_refused_total", "reason"), "refused: {{reason}}"),
        width=16,
        height=8,
        empty="no sweep ended or was refused in this range",
    )


def _gpus() -> list[Panel]:
    energy = f"target:llmslo_gpu_energy_joules_per_1k_tokens:rate5m{{{TARGET}}}"
    return [
        series(
            "Output tokens per GPU",
            "Output tokens per second per GPU. Bad: lower at the same demand. No data: no GPUs are read.",
            "short",
            Query(f"max(target:llmslo_engine_generation_tokens_per_gpu:rate5m{{{TARGET}}})", "per GPU"),
        ),
        series(
            "Cost and energy of 1,000 output tokens",
            "Dollars at the configured price, and joules, per 1,000 output tokens. Bad: rising: GPUs are idle or slower. "
            "No data: no price, or no GPUs are read.",
            "currencyUSD",
            Query(f"max(target:llmslo_gpu_cost_dollars_per_1k_tokens:rate5m{{{TARGET}}})", "dollars"),
            Query(f"max({energy})", "joules"),
            overrides=[on_the_right("joules", "joule")],
        ),
        series(
            "Demand by kind of token",
            "Prompt and output tokens per second of the engine. Bad: a ratio far from that of the sweep; sweep with a closer workload.",
            "short",
            Query(rate("llmslo_engine_prompt_tokens_total"), "prompt"),
            Query(rate("llmslo_engine_generation_tokens_total"), "output"),
        ),
    ]
