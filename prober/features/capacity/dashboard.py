"""Capacity dashboard: capacity, demand, headroom, forecast and sweeps of a target."""

from prober.exposition.dashboards.board import HEADROOM_STEPS, Board, annotation
from prober.exposition.dashboards.panels import Panel, Query, counts, now, row, series, stat
from prober.exposition.dashboards.queries import NOW, STEP, TARGET, WHOLE_GPUS, gauge, increase, rate
from prober.exposition.dashboards.style import (
    BLUE,
    NEUTRAL,
    ORANGE,
    Json,
    Unit,
    band,
    dashed,
    fixed_color,
    named,
    on_the_right,
    override,
    words_mapping,
)
from prober.exposition.families import AnySeries
from prober.features.capacity import series as capacity_series

RATE_AXIS = "requests per second"
WITHOUT_POINTS = (("custom.showPoints", "never"),)
BOUNDS = ("lower", "estimate", "upper")
MIN_HEADROOM = 0.2  # default of `prober plan`
PERCENTILES = ("p50", "p90", "p95", "p99")  # of a measured stage
ANNOTATION = annotation(
    "Sweep",
    "blue",
    f'max by (target) ({capacity_series.SWEEP_RATE}{{target=~"$target"}}) > 0',
    "{{target}}: a sweep adds load",
)


def board() -> Board:
    """The dashboard `capacity`."""
    rows = {
        "": _now(),
        "Demand against capacity": [_headroom(), _requests(), _kv()],
        "Load curve": [_curve("ttft"), _curve("tpot"), _curve("itl"), _frontier()],
        "Sweeps": [_knee(), _ended()],
        "GPUs": _gpus(),
    }
    text = "Capacity of one target from sweeps, with its interval; demand, headroom, forecast and cost."
    return Board("capacity", text, rows, one_target=True, variables=("target",))


def _users(selector: str) -> str:
    """PromQL selector of user demand. During a sweep and 5 minutes after it (window of the demand rate), only the sweeping prober's
    value is used: it keeps the demand from before, while other probers count the sweep as demand.
    """
    swept = f"max by (target, instance) (max_over_time(({capacity_series.SWEEP_RATE}{{{TARGET}}})[6m:])) > 0"
    return f"({selector} unless on (target) {swept} or {selector} and on (target, instance) {swept})"


def least_headroom(bound: str) -> str:
    """PromQL selector of a bound of the free share of the capacity by prober, by sweeps and by users; the smaller one counts."""
    return f'{{__name__=~"{capacity_series.HEADROOM}|{capacity_series.USERS_HEADROOM}",{TARGET},bound="{bound}"}}'


def _free(bound: str) -> str:
    """PromQL for one bound of the free share of the capacity, the least over the probers."""
    return f"min({_users(least_headroom(bound))})"


def _needed(bound: str) -> str:
    """PromQL for the instances needed at the peak demand of the time range, by a bound of the headroom."""
    return f"ceil(max_over_time((1 - {_free(bound)})[$__range:1m]) / {1 - MIN_HEADROOM:g})"


def _now() -> list[Panel]:
    return [
        stat(
            "Headroom",
            "Free share of the capacity now, for the traffic that is there, with its 90% interval: at least, estimate, at most. At 50% "
            "free it can double. With `metrics.slos` the smaller of that by sweeps and that by the users' own latencies. If it is "
            "unknown, the reason. Bad: the lower bound below 30% (orange) or 10% (red).",
            "percentunit",
            *(now(_free(bound), name) for bound, name in zip(BOUNDS, ("at least", "estimate", "at most"), strict=True)),
            now(
                f"max by (reason) ({capacity_series.HEADROOM_UNKNOWN}{{{TARGET}}}) unless on () {_free('estimate')}",
                "{{reason}}",
            ),
            steps=HEADROOM_STEPS,
            decimals=0,
            width=6,
            text_mode="value_and_name",
            overrides=[override("byFrameRefID", "D", [("mappings", words_mapping({"1": "unknown"}, "text"))])],
        ),
        stat(
            "Traffic can grow by",
            "By how much the traffic that is there can grow, at its present shape, until an SLO is missed: at least, by the lower "
            "bound of the headroom, and estimate. Bad: less than the growth that you expect before the next instance.",
            "percentunit",
            *(
                now(f"1 / (1 - clamp_min({_free(bound)}, 0)) - 1", name)
                for bound, name in (("lower", "at least"), ("estimate", "estimate"))
            ),
            steps=NEUTRAL,
            decimals=0,
            width=4,
        ),
        stat(
            "Capacity age",
            "Time since a sweep last found a capacity. Bad: longer than the sweep period, or older than the last engine change.",
            "s",
            now(f"time() - max({capacity_series.SWEEP_SUCCESS}{{{TARGET}}})"),
            steps=NEUTRAL,
            width=3,
            decimals=1,
        ),
        stat(
            "Capacity exhaustion",
            "Forecast date at which the daily peak of demand reaches the capacity: earliest and estimate. Growth within a day is not "
            "in it. Bad: within a month. No forecast: fewer than seven days of demand are known, or peaks do not clearly grow.",
            "dateTimeFromNow",
            *(
                now(f'1000 * min({capacity_series.CAPACITY_EXHAUSTION}{{{TARGET},bound="{bound}"}})', name)
                for bound, name in (("earliest", "earliest"), ("estimate", "estimate"))
            ),
            steps=NEUTRAL,
            width=4,
            empty="no forecast",
        ),
        counts(
            "Instances for the peak",
            "Instances like this target that the least headroom of the shown range needs, so that each has 20% free: by the estimate, "
            "and at most, by the lower bound, with the GPUs of that. Where both differ, the interval of the headroom does not tell. "
            "Bad: more than there are. No data: headroom or GPUs are not known.",
            now(_needed("estimate"), "estimate"),
            now(_needed("lower"), "at most"),
            now(f"{_needed('lower')} * count({WHOLE_GPUS})", "GPUs"),
            width=4,
        ),
        stat(
            "Last sweep ended",
            "When the last sweep ended, and the reason why it stopped sending. Bad: more recent than the capacity: it found none, and "
            "capacity and load curve are those of an earlier one.",
            "dateTimeFromNow",
            now(f"1000 * max by (reason) ({capacity_series.SWEEP_END}{{{TARGET}}})", "reason: {{reason}}"),
            steps=NEUTRAL,
            text_mode="value_and_name",
            width=3,
            empty="none known",
        ),
    ]


def _requests() -> Panel:
    demand = f"max({_users(f'{capacity_series.DEMAND}{{{TARGET}}}')})"
    return series(
        "Demand against capacity",
        "Requests per second that arrive at the engine, and how many of their present size it can serve with its SLOs met, with the "
        "90% interval. The capacity moves with the size of the requests. Bad: demand in or above the band.",
        "reqps",
        *(Query(f"{demand} / (1 - {_free(bound)} < 1)", f"capacity, {bound}") for bound in BOUNDS),
        Query(demand, "demand"),
        width=12,
        overrides=[
            *band("capacity, lower", "capacity, upper"),
            dashed("capacity, estimate", BLUE, in_legend=True),
            fixed_color("demand", ORANGE, ("custom.lineWidth", 2)),
        ],
    )


def _headroom() -> Panel:
    return series(
        "Headroom over time",
        "Free share of the capacity for the traffic that is there, with its 90% interval; below 0% demand exceeds the capacity. With "
        "`metrics.slos` the smaller of that by sweeps and that by the users' own latencies. "
        "Bad: a lower bound near 0 at the daily peak.",
        "percentunit",
        *(Query(_free(bound), bound) for bound in BOUNDS),
        width=12,
        empty="unknown: no sweep has found a capacity, or the engine's page does not count requests and tokens",
        overrides=band("lower", "upper"),
        low=None,
        high=1,
    )


def _kv() -> Panel:
    size = gauge("llmslo_engine_kv_cache_capacity_tokens")
    tokens = " + ".join(rate(f"llmslo_engine_{kind}_tokens_total") for kind in ("prompt", "generation"))
    return series(
        "Free KV cache",
        "Free share of the KV cache of the fullest rank, the size in tokens over all ranks, and how many requests of the present mean "
        "length fit, each with its whole prompt and answer; with shared prefixes more fit. "
        "Bad: below 10%; preemptions may follow. Or fewer requests fit than run at the peak.",
        "percentunit",
        Query(f"1 - {gauge('llmslo_engine_kv_cache_usage_ratio')}", "free"),
        Query(size, "total tokens"),
        Query(f"{size} * {rate('llmslo_engine_requests_total')} / ({tokens} > 0)", "requests that fit"),
        high=1,
        width=24,
        overrides=[
            on_the_right("total tokens", "short"),
            on_the_right("requests that fit", "none"),
        ],  # each unit has its axis
    )


def _knee() -> Panel:
    return series(
        "Knee found by sweeps",
        "Estimated knee of all SLOs together, in requests per second of the users and of the sweep together, with its interval, and "
        "the estimate of each SLO. It is of the mix of both during the sweep, so that demand of another mix may be far above it or "
        "below it: for the traffic of now read `Demand against capacity`. "
        "Bad: lower than after the previous sweep at the same sizes; the SLO with the lowest estimate sets the capacity.",
        "reqps",
        *(
            Query(f'min({capacity_series.CAPACITY}{{{TARGET},bound="{bound}"}})', f"all SLOs, {bound}")
            for bound in BOUNDS
        ),
        Query(gauge(capacity_series.CAPACITY, "slo", ',bound="estimate"'), "SLO {{slo}}"),
        width=12,
        empty="no sweep has found a capacity in this range",
        overrides=[*band("all SLOs, lower", "all SLOs, upper"), dashed("SLO .*", "", in_legend=True)],
    )


def _trend(title: str, text: str, unit: Unit, rates: str, *values: tuple[str, str], overrides: list[Json]) -> Panel:
    """Panel of lines over the request rate, by a table with one row per `stage`. Lines continue over missing values.

    rates: PromQL for requests per second by `stage`; values: (PromQL by `stage`, name). Equal rates show the largest value.
    """
    queries = [row(rates), *(row(expr) for expr, _ in values)]
    refs = [f"Value #{chr(ord('A') + place)}" for place in range(len(queries))]
    grouped: Json = {refs[0]: {"aggregations": [], "operation": "groupby"}}
    grouped |= {ref: {"aggregations": ["max"], "operation": "aggregate"} for ref in refs[1:]}
    after, names = [refs[0], *(f"{ref} (max)" for ref in refs[1:])], [RATE_AXIS, *(name for _, name in values)]
    renamed = {"excludeByName": {}, "indexByName": {name: place for place, name in enumerate(after)}}
    transformations: list[Json] = [
        {"id": "merge", "options": {}},
        {"id": "groupBy", "options": {"fields": grouped}},
        {"id": "sortBy", "options": {"fields": {}, "sort": [{"field": refs[0], "desc": False}]}},
        {"id": "organize", "options": renamed | {"renameByName": dict(zip(after, names, strict=True))}},
    ]
    lines = series(title, text, unit, *queries)
    custom = {**lines.custom, "showPoints": "always", "pointSize": 7, "lineWidth": 2, "spanNulls": True}
    return Panel(
        "trend", title, text, unit, queries, transformations=transformations, options=dict(lines.options), custom=custom,
        low=0, empty="no sweep yet", width=12, height=10, overrides=[*overrides, named(RATE_AXIS, ("unit", "reqps"))],
    )  # fmt: skip


# Curve and knee come from one prober: the one with the latest capacity, or without any with the latest sweep.
_SUCCESS, _END = (
    f"max by (instance) ({declared}{{{TARGET}}})"
    for declared in (capacity_series.SWEEP_SUCCESS, capacity_series.SWEEP_END)
)


def _of_sweep(*rows: str) -> str:
    """PromQL for rows by `stage` of the prober whose sweep is shown; of several SLOs, or probers of one name, the smallest value."""
    return f"min by (stage) (({' or '.join(rows)}) and on (instance) topk(1, {_SUCCESS} or on () {_END}))"


STAGE_RATES = f"{capacity_series.SWEEP_STAGE_RATE}{{{TARGET}}}"


def _curve(signal: str) -> Panel:
    """Latency over the request rate, with the limit and the knee, whose two edges are rows of their own."""
    judged = f'llmslo_slo_threshold_seconds{{{TARGET},signal="{signal}"}}'
    latency = f'{capacity_series.SWEEP_STAGE_LATENCY}{{{TARGET},signal="{signal}"'
    knee = f'{capacity_series.CAPACITY}{{{TARGET},bound=~"lower|upper"}} and on (target, slo) {judged}'
    edges = f'label_join({knee}, "stage", "", "bound")'
    limit = f"+ on () group_left () min({judged})"
    return _trend(
        f"{signal.upper()} over load",
        f"{signal.upper()} in each stage over the total rate, of the last sweep that found a capacity; without quantiles that have too "
        "few samples. Band: the interval of the knee. The status page draws the same, with the curve that was fitted. "
        "Bad: a knee at a lower rate than before. No band: no knee was found for this latency.",
        "s",
        _of_sweep(STAGE_RATES, edges),
        *((_of_sweep(f'{latency},percentile="{name}"}}'), name) for name in PERCENTILES),
        (f"0 * {_of_sweep(STAGE_RATES, edges)} {limit}", "limit of the SLO"),
        (f"0 * {_of_sweep(edges)} {limit}", "knee, 90% interval"),
        overrides=[
            dashed("limit of the SLO", in_legend=True),
            named("limit of the SLO", *WITHOUT_POINTS),
            fixed_color(
                "knee, 90% interval", BLUE, *WITHOUT_POINTS, ("custom.lineWidth", 0), ("custom.fillOpacity", 30)
            ),
        ],
    )


def _frontier() -> Panel:
    return _trend(
        "Throughput over load",
        "Output tokens per second of the sweep's requests at the rate of each stage over the total rate, of the last sweep that found "
        "a capacity, without stages that were too short to show it. Bad: it levels off below the rate that you need.",
        "short",
        _of_sweep(STAGE_RATES),
        (_of_sweep(f"{capacity_series.SWEEP_STAGE_TOKENS}{{{TARGET}}}"), "output tokens per second"),
        overrides=[],
    )


def _ended() -> Panel:
    def of(declared: AnySeries, by: str) -> str:
        return f"{increase(declared, by, select=TARGET, window='$__range')} > 0"

    return counts(
        "Sweeps by result",
        "Sweeps that ended in this range, by verdict, and sweeps that were refused. "
        "Bad: void, not_judged, no_estimate, failed, or refused repeatedly: the capacity becomes outdated.",
        now(of(capacity_series.SWEEPS, "verdict"), "{{verdict}}"),
        now(of(capacity_series.SWEEPS_REFUSED, "reason"), "refused: {{reason}}"),
        width=12,
        height=8,
        empty="no sweep ended or was refused in this range",
    )


def _gpus() -> list[Panel]:
    swept = f"max by (target) (max_over_time({capacity_series.SWEEP_RATE}{{{TARGET}}}[{STEP}])) > 0"
    tokens = rate("llmslo_engine_generation_tokens_total", window=NOW)
    # A configured number overrides the visible GPUs; partitions are listed in addition to their GPU.
    visible = (
        f"count by (target) (group by (target, gpu) (llmslo_gpu_info{{{TARGET}{more}}}))"
        for more in (',gpu!~".+:.+"', "")
    )
    gpus = f"({' or '.join((gauge('llmslo_gpus'), *visible))})"
    joules = f"sum by (target) ({rate('llmslo_gpu_energy_joules_total', 'target, gpu', window=NOW)})"
    dollars = f"{gauge('llmslo_gpu_price_dollars_per_hour')} / 3600 * {gpus}"
    return [
        series(
            "Output tokens per GPU",
            "Output tokens per second per GPU. Bad: lower at the same demand. No data: no GPUs are read.",
            "short",
            Query(f"max({tokens} / {gpus})", "per GPU"),
        ),
        series(
            "Cost and energy of 1,000 output tokens",
            "Dollars at the configured price, and joules, per 1,000 output tokens. Bad: rising: GPUs are idle or slower. "
            "No data: no price, or no GPUs are read.",
            "currencyUSD",
            Query(f"1000 * max({dollars} / ({tokens} > 0))", "dollars"),
            Query(f"1000 * max({joules} / ({tokens} > 0))", "joules"),
            overrides=[on_the_right("joules", "joule")],
        ),
        series(
            "Demand by kind of token",
            "Prompt and output tokens per second of the engine, without the time of sweeps, and both without cached prompts. Bad: a "
            "ratio far from that of the sweep: the interval of the headroom is wider. Sweep without `workload`.",
            "short",
            Query(f"{rate('llmslo_engine_prompt_tokens_total')} unless on (target) {swept}", "prompt"),
            Query(f"{rate('llmslo_engine_generation_tokens_total')} unless on (target) {swept}", "output"),
            Query(f"max({_users(f'{capacity_series.DEMAND_TOKENS}{{{TARGET}}}')})", "both, without cached prompts"),
        ),
    ]
