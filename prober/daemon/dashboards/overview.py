"""Overview dashboard: state of all targets; alerts link to it."""

from prober.exposition.dashboards.board import Board
from prober.exposition.dashboards.panels import Column, Panel, Query, now, row, series, stat, states, table
from prober.exposition.dashboards.queries import (
    ALERTING,
    BUDGET_LEFT,
    FIRING,
    MIN_P99_SAMPLES,
    PROBES,
    SLO_STATE,
    TARGET,
    WINDOW,
    answering,
    increase,
    judged,
    limit,
    quantile,
    samples,
    slo_state,
    target_state,
)
from prober.exposition.dashboards.style import (
    GREEN,
    LOGARITHMIC,
    ORANGE,
    RED,
    SYMLOG,
    YELLOW,
    Json,
    as_steps,
    dashed,
    dotted,
    named,
    text_mapping,
)
from prober.exposition.dashboards.vocabulary import (
    BUDGET_STEPS,
    GOOD_AT_ONE,
    HEADROOM_STEPS,
    SEVERITIES,
    SLO_STATES,
    TARGET_STATES,
    YES_NO,
    target_column,
)

ANY_IS_BAD = ((None, GREEN), (1, RED))
ANY_IS_ODD = ((None, GREEN), (1, ORANGE))
OF_LIMIT = ((None, GREEN), (0.8, YELLOW), (1, RED))
TREND = ((None, "transparent"), (1.5, YELLOW))
SLO_NAMES = (("met", "met"), ("no_data", "no data"), ("missed", "missed"))
FEW = ((None, ORANGE), (MIN_P99_SAMPLES, "transparent"))
ALERT = "severity, alertname, target, workload, slo, cause"  # one alert may fire over several windows
RULES = f"0 * group({SLO_STATE}{{{TARGET}}})"
PROBER = 'ALERTS{alertname=~"LLMProber.+",alertstate="firing"}'


def board() -> Board:
    """The dashboard `overview`."""
    rows = {
        "": _counts(),
        "Targets": [_targets(), _firing(), _history()],
        "Latency": [*_latency()],
    }
    text = "One row per target: SLO status, error budget, latency, likely cause and firing alerts."
    return Board("overview", text, rows)


def _counts() -> list[Panel]:
    return [
        stat(
            "Targets failing",
            "Targets whose last probes, at least three, all failed. Bad: any; users probably get no answers either.",
            "none",
            now(
                f'count(max by (target) (llmslo_target_state{{{TARGET},state="failing"}}) == 1) or '
                f"0 * group(llmslo_target_state{{{TARGET}}})"
            ),
            steps=ANY_IS_BAD,
            fill="background",
        ),
        stat(
            "SLOs",
            "SLOs over their own windows: met, no data, missed. Bad: any missed. No data means unknown: no events, "
            "or the prober's measurements are not reliable.",
            "none",
            *(
                now(f'count({SLO_STATE}{{{PROBES},state="{state}"}} == 1) or {RULES}', name)
                for state, name in SLO_NAMES
            ),
            overrides=[
                named(name, ("thresholds", {"mode": "absolute", "steps": as_steps(steps)}))
                for name, steps in (
                    ("met", ((None, "text"), (1, GREEN))),
                    ("no data", ANY_IS_ODD),
                    ("missed", ANY_IS_BAD),
                )
            ],
            fill="background",
            width=8,
        ),
        stat(
            "Alerts firing",
            "Firing alerts of these targets, listed below. Bad: any. "
            "No data: Prometheus has not loaded the prober's rules.",
            "none",
            now(f"count({_alerts('=')}) or {RULES}", "critical"),
            now(f"count({_alerts('!=')}) or {RULES}", "others"),
            overrides=[
                named(name, ("thresholds", {"mode": "absolute", "steps": as_steps(steps)}))
                for name, steps in (("critical", ANY_IS_BAD), ("others", ANY_IS_ODD))
            ],
            fill="background",
        ),
        stat(
            "Latencies drifting",
            "Latencies above their own baseline. Bad: any, even while the SLO is met. "
            "Learning: no baseline is complete yet.",
            "none",
            now(
                f"count(max by (target, workload, signal) (llmslo_drift_active{{{PROBES}}}) == 1) or "
                f"0 * group({judged()})"
            ),
            steps=ANY_IS_ODD,
            fill="background",
            empty="learning",
        ),
        stat(
            "Probers trusted",
            "Whether every prober sent its probes on time in the last 5 minutes. "
            "Bad: no; latencies may include the prober's own delays.",
            "none",
            now('min(llmslo_trusted{instance!=""})'),
            mappings=YES_NO,
            steps=GOOD_AT_ONE,
            fill="background",
        ),
    ]


def _alerts(severity: str) -> str:
    """Each alert once; `=` for critical ones, `!=` for the others."""
    return f'group by ({ALERT}) (ALERTS{{{ALERTING},severity{severity}"critical"}})'


def _burn(signal: str = "") -> str:
    """Burn rate of each SLO of each workload over the selected window, from exact counters; of one signal, or of all."""
    each = "target, workload, slo"
    bad, events = (increase(f"llmslo_slo_{kind}_total", each, window=WINDOW) for kind in ("bad_events", "events"))
    of_signal = f',signal="{signal}"' if signal else ""
    allowed = f"(1 - max by ({each}) (llmslo_slo_objective_ratio{{{PROBES}{of_signal}}}))"
    return f"{bad} / ({events} > 0) / {allowed}"


def _trend(histogram: str) -> str:
    before = quantile(0.99, histogram, offset=f" offset {WINDOW}")
    return answering(f"max by (target) ({quantile(0.99, histogram)} / {before})")


def _targets() -> Panel:
    headroom = [
        row(f'min by (target) (llmslo_headroom_ratio{{{TARGET},bound="{bound}"}})')
        for bound in ("lower", "estimate", "upper")
    ]
    queries = [
        row(target_state()),
        row(slo_state("target")),
        row(f"min by (target) ({BUDGET_LEFT}{{{PROBES}}})"),
        row(answering(f"max by (target) ({quantile(0.99, 'llmslo_ttft_seconds')})")),
        row(f"max by (target) ({_burn('ttft')})"),
        row(_trend("llmslo_ttft_seconds")),
        row(answering(f"max by (target) ({quantile(0.99, 'llmslo_itl_seconds')})")),
        row(f"max by (target) ({_burn('itl')})"),
        row(_trend("llmslo_itl_seconds")),
        row(f"min by (target) ({samples('llmslo_ttft_seconds')})"),
        *headroom,
        row(f"topk by (target) (1, max by (target, regime) (llmslo_regime_active{{{TARGET}}}) == 1)"),
        row(f"count by (target) (group by ({ALERT}) ({FIRING})) or 0 * group by (target) ({SLO_STATE}{{{TARGET}}})"),
        row(answering(f"max by (target) ({quantile(0.95, 'llmslo_ttft_seconds')})")),
        row(answering(f"max by (target) ({quantile(0.95, 'llmslo_itl_seconds')})")),
    ]
    ratio: Json = {"unit": "none", "steps": OF_LIMIT, "width": 95, "decimals": 2, "empty": "–"}
    trend: Json = {"unit": "none", "steps": TREND, "width": 112, "decimals": 2, "empty": "–"}
    free: Json = {"unit": "percentunit", "width": 62, "decimals": 0}
    columns = [
        target_column(width=130),
        Column(source="Value #A", name="State", mappings=TARGET_STATES, width=66),
        Column(source="Value #B", name="SLOs", mappings=SLO_STATES, width=66),
        Column(source="Value #C", name="Budget", unit="percentunit", steps=BUDGET_STEPS, width=72, decimals=0),
        Column(source="Value #P", name="TTFT p95", unit="s", width=80),
        Column(source="Value #D", name="TTFT p99", unit="s", width=80),
        Column(source="Value #E", name="TTFT burn", **ratio),
        Column(source="Value #F", name="TTFT ÷ before", **trend),
        Column(source="Value #Q", name="ITL p95", unit="s", width=76),
        Column(source="Value #G", name="ITL p99", unit="s", width=76),
        Column(source="Value #H", name="ITL burn", **ratio),
        Column(source="Value #I", name="ITL ÷ before", **trend),
        Column(source="Value #J", name="Samples", unit="none", steps=FEW, decimals=0, width=72),
        Column(source="Value #K", name="Free ≥", steps=HEADROOM_STEPS, **free),
        Column(source="Value #L", name="Free", **free, empty="–"),
        Column(source="Value #M", name="Free ≤", **free, empty="–"),
        Column(source="regime", name="Likely cause", width=150, empty="–"),
        Column(source="Value #O", name="Alerts", unit="none", steps=ANY_IS_BAD, width=58),
    ]
    return table(
        "Targets",
        "Worst values per target: SLO state, lowest error budget, p95 and p99 of the slowest workload in the selected window, how fast "
        "its worst TTFT and ITL SLO burn their budgets, the p99 relative to the window before, free share of the capacity with its "
        "interval, and the diagnosed cause (one of them if there are two). "
        "Bad: red cells; a burn above 1 spends more than the objective allows, ÷ before above 1 is slower than before. A failing "
        "target has no latency. Orange samples: fewer than 1,000, too few for a p99.",
        columns,
        *queries,
        sort="-Alerts",
        hide=("Value #N",),
        height=9,
    )


def _firing() -> Panel:
    columns = [
        Column(source="severity", name="Severity", mappings=text_mapping(SEVERITIES), width=85),
        Column(source="alertname", name="Alert", width=230),
        target_column(empty="–"),
        Column(source="workload", name="Workload", width=90, empty="–"),
        Column(source="slo", name="SLO", width=80, empty="–"),
        Column(source="cause", name="Cause", width=90, empty="–"),
    ]
    return table(
        "Firing alerts",
        "Firing alerts of these targets and of the probers. Bad: any; critical ones first. "
        "The alert message links to the runbook.",
        columns,
        row(f"group by ({ALERT}) ({FIRING} or {PROBER})"),
        sort="Severity",
        hide=("Value", "Value #A"),
        width=14,
        empty="no alert is firing",
    )


def _history() -> Panel:
    return states(
        "SLOs over time",
        "State of the worst SLO of each target. Bad: red, missed. Grey is no data: unknown.",
        SLO_STATES,
        Query(slo_state("target"), "{{target}}"),
        width=10,
        height=8,
    )


def _latency() -> list[Panel]:
    return [
        _p99("ttft", "TTFT", "99th percentile of the time to first token"),
        _p99("itl", "ITL", "99th percentile of the time between tokens"),
        _burn_rate(),
        _states(),
    ]


def _p99(signal: str, name: str, description: str) -> Panel:
    histogram = f"llmslo_{signal}_seconds"
    p99 = quantile(0.99, histogram)
    enough = f"{samples(histogram)} >= {MIN_P99_SAMPLES}"
    objective = "target, workload, slo"  # of a p99; a threshold for 95% of the events is no limit of a p99
    of_p99 = f"max by ({objective}) (llmslo_slo_objective_ratio{{{PROBES}}}) > 0.9895 < 0.9905"
    return series(
        f"{name} p99 by target",
        f"{description} of the slowest workload over the selected window, on a logarithmic axis. Grey dots: fewer than 1,000 "
        "samples. Bad: above the dashed limit of an SLO of 99%, or rising.",
        "s",
        Query(f"max by (target) ({p99})", "{{target}}"),
        Query(f"max by (target) ({p99} unless {enough})", "{{target}}, few samples"),
        Query(f"min by (target) ({limit(signal)} and on ({objective}) {of_p99})", "limit of {{target}}"),
        width=12,
        low=None,
        custom={"scaleDistribution": LOGARITHMIC, "lineWidth": 2},
        empty="",  # else its axis shows that for ticks without a label
        overrides=[dashed("limit of .*"), dotted("B")],
    )


def _burn_rate() -> Panel:
    return series(
        "Burn rate of the worst SLO",
        "Burn rate of each target's worst SLO in its worst workload over the selected window, on a logarithmic axis; from exact "
        "counters, not buckets. "
        "Bad: above 1, dashed: the budget does not last for the SLO window.",
        "none",
        Query(f"max by (target) ({_burn()})", "{{target}}"),
        steps=((None, "transparent"), (1, RED)),
        custom={
            "thresholdsStyle": {"mode": "dashed"},
            "scaleDistribution": SYMLOG,
            "axisSoftMin": 0,
            "axisSoftMax": 20,
        },
        low=None,
        decimals=1,
        width=12,
    )


def _states() -> Panel:
    return states(
        "State of the targets",
        "State of each target, from its probes and the engine's health page. Bad: red, failing.",
        TARGET_STATES,
        Query(target_state(), "{{target}}"),
        width=12,
    )
