"""Panels of drift: latencies against their own baselines."""

from prober.exposition.dashboards.board import annotation, target_column
from prober.exposition.dashboards.panels import Column, Panel, Query, counts, now, series, states, table
from prober.exposition.dashboards.queries import PROBES, TARGET, increase, judged
from prober.exposition.dashboards.style import GREEN, GREY, RED, YELLOW, Json, index_mapping, named, text_mapping
from prober.features.drift import efficiency_series
from prober.features.drift import series as drift_series

SIGNAL = "target, workload, signal"
LEGEND = "{{target}} {{workload}} {{signal}}"
OF_ANSWERS = "of ITL those of the p99 of each answer"
EVIDENCE = f"max by ({SIGNAL}) ({drift_series.DRIFT_EVIDENCE}{{{PROBES}}}) and on ({SIGNAL}) {judged()}"
EVIDENCE_STEPS = ((None, GREEN), (0.5, YELLOW), (1, RED))
PHASES = {"learning": GREY, "provisional": YELLOW, "settled": GREEN}
ANNOTATION = annotation(
    "Drift",
    "orange",
    f'max by (target, workload, signal, cause) ({drift_series.DRIFT_ACTIVE}{{target=~"$target"}}) == 1',
    "{{target}}, {{workload}}: {{signal}} is slower than its baseline ({{cause}})",
)


def evidence() -> list[Panel]:
    """Panels of the evidence, active drifts, sizes of shifts, and events of baselines."""
    return [
        series(
            "Evidence",
            "Evidence that a latency is above its own baseline, on a log scale. Bad: at 1, dashed, an alarm is raised; "
            "so is a line that climbs steadily. No line while the baseline is learning.",
            "none",
            Query(EVIDENCE, LEGEND),
            steps=((None, GREEN), (1, RED)),
            custom={"thresholdsStyle": {"mode": "dashed"}, "axisSoftMax": 1.2},
            width=12,
            empty="learning, or no data",
        ),
        _active(),
        series(
            "Size of the shift",
            "Median and p99 since the alarm relative to the baseline at the same load, with 95% intervals; only with enough samples; "
            f"{OF_ANSWERS}. Bad: a lower bound well above 1. No data: no drift, or too few samples.",
            "none",
            *(
                Query(
                    f'max by ({SIGNAL}, percentile) ({drift_series.DRIFT_SHIFT}{{{PROBES},percentile=~"p50|p99",bound="{bound}"}})',
                    f"{{{{target}}}} {{{{workload}}}} {{{{signal}}}} {{{{percentile}}}} {bound}",
                )
                for bound in ("lower", "estimate", "upper")
            ),
            low=None,
            decimals=2,
            steps=((None, "transparent"), (1, GREY)),
            custom={"thresholdsStyle": {"mode": "line"}},
            overrides=[
                named(
                    ".*(lower|upper)", ("custom.lineStyle", {"fill": "dot", "dash": [2, 4]}), ("custom.fillOpacity", 0)
                )
            ],
            width=12,
            empty="no drift with enough samples",
        ),
        _events(),
    ]


def _shifted(bound: str) -> str:
    """PromQL for the median since the alarm ÷ the baseline's median, or for a confidence bound of this ratio."""
    return f'max by ({SIGNAL}) ({drift_series.DRIFT_SHIFT}{{{PROBES},percentile="p50",bound="{bound}"}})'


def baselines() -> Panel:
    ratio: Json = {"unit": "none", "width": 90, "decimals": 2, "empty": "–"}
    active = f"max by ({SIGNAL}, cause) ({drift_series.DRIFT_ACTIVE}{{{PROBES}}}) == 1"
    phase = f"max by ({SIGNAL}, state) ({drift_series.BASELINE_STATE}{{{PROBES}}}) == 1"
    since = f"1000 * max by ({SIGNAL}) ({drift_series.DRIFT_SINCE}{{{PROBES}}})"
    columns = [
        target_column(),
        Column("Workload", label="workload"),
        Column("Signal", label="signal", width=80),
        Column("Baseline", phase, label="state", width=100, mappings=text_mapping(PHASES)),
        Column("Evidence", EVIDENCE, unit="percentunit", width=85, steps=EVIDENCE_STEPS, decimals=0, empty="–"),
        Column("Cause", active, label="cause", width=100, empty="–"),
        Column("Since", since, unit="dateTimeFromNow", width=130, empty="–"),
        Column("Median ×", _shifted("estimate"), **ratio),
        Column("at least ×", _shifted("lower"), **ratio),
        Column("at most ×", _shifted("upper"), **ratio),
    ]
    return table(
        "Latencies against their baselines",
        "Phase of each baseline (learning: not judged yet; provisional: judged with a wide margin; settled), the evidence of drift "
        "(an alarm takes 100%, and a slowdown that lasted three minutes), and "
        "for an active drift its cause, start, and median relative to the baseline with a 95% interval; "
        f"{OF_ANSWERS}. Bad: red evidence. A dash: no active drift.",
        columns,
        sort="-Evidence",
    )


def efficiency() -> Panel:
    """Panel of the engine's efficiency over what is usual."""
    present, usual = (
        f'max by (target, measure) ({efficiency_series.EFFICIENCY}{{{TARGET},period="{period}"}})'
        for period in ("present", "usual")
    )
    fallen = f"max by (target, measure) ({efficiency_series.EFFICIENCY_DROPPED}{{{TARGET}}}) == 1"
    return series(
        "Efficiency of the engine",
        "Each hour's value over what is usual for such requests at such an hour; thick: during an alarm. Bad: hits and acceptance far "
        "below 1, the others far above. No data: the page has no such counters, or the first week is being learned.",
        "none",
        Query(f"{present} / ({usual} > 0)", "{{target}} {{measure}}"),
        Query(f"{present} / ({usual} > 0) and {fallen}", "{{target}} {{measure}}, alarm"),
        width=24,
        overrides=[named(".*, alarm", ("custom.lineWidth", 3))],
        empty="nothing is judged",
    )


def _active() -> Panel:
    codes = " or ".join(
        f'{place} * ({drift_series.DRIFT_ACTIVE}{{{PROBES},cause="{cause}"}} == 1)'
        for place, cause in enumerate(("unusual", "unknown", "regression"), 2)
    )
    return states(
        "Drift over time",
        "Active drift of each latency by cause: regression is slower at the same load; unknown: the load was not learnt, or is not "
        "known; unusual: slower than in the hours learnt so far. Bad: regression. Grey: learning, not judged yet.",
        index_mapping(("learning", GREY), ("none", GREEN), ("unusual", YELLOW), ("unknown", YELLOW), ("regression", RED)),
        Query(
            f"max by ({SIGNAL}) ({codes} or {judged()} or 0 * {drift_series.DRIFT_EVIDENCE}{{{PROBES}}})", LEGEND
        ),
        width=12,
    )  # fmt: skip


def _events() -> Panel:
    happened = increase(drift_series.DRIFT_EVENTS, "signal, event", window="$__range")
    return counts(
        "Baseline events",
        "Events in this range: baselines learnt, alarms, what the first hours find unusual, bursts of up to three minutes, "
        "recoveries, improvements and accepted drifts. "
        "Bad: improved and learnt repeatedly; the baseline then never settles.",
        now(f"{happened} > 0", "{{signal}} {{event}}"),
        width=12,
        height=8,
        empty="no events in this range",
    )
