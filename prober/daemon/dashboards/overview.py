"""Overview dashboard: state of all targets; alerts link to it."""

from prober.exposition.dashboards.board import (
    BUDGET_STEPS,
    GOOD_AT_ONE,
    HEADROOM_STEPS,
    SEVERITIES,
    SLO_STATES,
    TARGET_STATES,
    YES_NO,
    Board,
    target_column,
)
from prober.exposition.dashboards.panels import (
    EVENT_INTERVAL,
    Column,
    Panel,
    Query,
    bars,
    now,
    series,
    stat,
    states,
    table,
)
from prober.exposition.dashboards.queries import (
    ALERTING,
    BUDGET_LEFT,
    BUDGET_RATIO,
    FIRING,
    MIN_P99_SAMPLES,
    NOW,
    PROBES,
    RECENTLY,
    RECORDED_P99,
    RECORDED_WINDOW,
    SLO_STATE,
    STEP,
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
    tiles,
)
from prober.exposition.dashboards.style import (
    GREEN,
    GREY,
    LOGARITHMIC,
    ORANGE,
    RED,
    SYMLOG,
    YELLOW,
    Json,
    as_steps,
    dashed,
    dotted,
    index_mapping,
    named,
    text_mapping,
)
from prober.features.capacity import series as capacity_series
from prober.features.capacity.dashboard import least_headroom
from prober.features.diagnosis import series as diagnosis_series
from prober.features.diagnosis.series import CAUSE_WORDS
from prober.features.drift import series as drift_series
from prober.features.engines import series as engines_series
from prober.features.slo import series as slo_series
from prober.probing import series as probe_series
from prober.probing.dashboard import FAILURE_WORDS

ANY_IS_BAD = ((None, GREEN), (1, RED))
ANY_IS_ODD = ((None, GREEN), (1, ORANGE))
OF_LIMIT = ((None, GREEN), (0.8, YELLOW), (1, RED))
TREND = ((None, "transparent"), (1.5, YELLOW))
# 0 left is no overdraft: too few events may not allow one bad event.
LEFT_STEPS = ((None, RED), (0, ORANGE), (1, "transparent"))
SOON = ((None, RED), (6 * 3_600, ORANGE), (3 * 86_400, "transparent"))
SLO_NAMES = ("met", "no data", "missed")  # in the order of `slo_state`'s codes
SLOW_STEP = "4m"  # for series that rules record every few minutes
STATE_STEP = "2m"
EACH_SLO = "target, workload, slo"
FEW = ((None, ORANGE), (MIN_P99_SAMPLES, "transparent"))
ALERT = "severity, alertname, target, workload, slo, cause"
# 0 for each target, and if rules are loaded: a band without events. Uses few series, as they are read at each step.
KNOWN = f'0 * group({probe_series.STATE}{{{TARGET},state="ready"}})'
RULES = f"0 * group({BUDGET_RATIO}{{{TARGET}}})"
JUDGED = f"0 * group({SLO_STATE}{{{TARGET}}})"
PROBER = 'ALERTS{alertname=~"LLMProber.+",alertstate="firing"}'


def board() -> Board:
    """The dashboard `overview`."""
    rows = {
        "": [
            stat(
                "Targets failing",
                "Targets whose last probes, at least three, all failed. Bad: any; users probably get no answers either.",
                "none",
                now(f'count(max by (target) ({probe_series.STATE}{{{TARGET},state="failing"}}) == 1) or {KNOWN}'),
                steps=ANY_IS_BAD,
                fill="background",
            ),
            stat(
                "SLOs",
                "SLOs over their own windows: met, no data, missed. Bad: any missed. No data means unknown: no events, "
                "or the prober's measurements are not reliable.",
                "none",
                *(
                    now(f"count({slo_state(EACH_SLO)} == {code}) or {JUDGED}", name)
                    for code, name in enumerate(SLO_NAMES)
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
                    f'count(max by (target, workload, signal) ({drift_series.DRIFT_ACTIVE}{{{PROBES},cause!="unusual"}}) == 1) or '
                    f"0 * group({judged()})"
                ),
                steps=ANY_IS_ODD,
                fill="background",
                empty="learning",
            ),
            stat(
                "Probers trusted",
                "Whether at least half of the probes of the last 10 minutes were sent and timed, of every target. "
                "Bad: no; latencies are not judged.",
                "none",
                now(f'min({probe_series.TRUSTED}{{target!=""}})'),
                mappings=YES_NO,
                steps=GOOD_AT_ONE,
                fill="background",
            ),
        ],
        "Who is in trouble, why, since when, and who is next": [_targets(), _headroom(), _incidents()],
        "Alerts and SLOs": [
            _firing(),
            states(
                "SLOs over time",
                "State of the worst SLO of each target. Bad: red, missed. Grey is no data: unknown.",
                SLO_STATES,
                Query(slo_state("target"), "{{target}}"),
                width=10,
                height=8,
                interval=SLOW_STEP,
            ),
        ],
        "Latency": [
            _latencies(),
            *[
                _p99("ttft", "TTFT", "99th percentile of the time to first token"),
                _p99("itl", "ITL", "99th percentile of the time between tokens"),
                series(
                    "Burn rate of the worst SLO",
                    "Burn rate of each target's worst SLO in its worst workload over the selected window, on a logarithmic axis; from "
                    "exact counters that the rules add up, not buckets. "
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
                    interval=SLOW_STEP,
                    empty="",  # otherwise the axis shows it for ticks without a label
                ),
                states(
                    "State of the targets",
                    "State of each target, from its probes and the engine's health page. Bad: red, failing.",
                    TARGET_STATES,
                    Query(target_state(), "{{target}}"),
                    width=12,
                    interval=STATE_STEP,
                ),
            ],
        ],
    }
    text = "Who is in trouble, why, since when, what it costs and who is next: one row per target, headroom, and incidents over time."
    return Board("overview", text, rows)


def _alerts(severity: str) -> str:
    """PromQL with one row per firing alert. severity: `=` for critical alerts, `!=` for all others"""
    return f'group by ({ALERT}) (ALERTS{{{ALERTING},severity{severity}"critical"}})'


def _burn(signal: str = "") -> str:
    """PromQL for each SLO's and workload's burn rate over the selected window. signal: latency of the SLOs, "" for all"""
    of_signal = f',signal="{signal}"' if signal else ""
    allowed = f"(1 - max by ({EACH_SLO}) ({slo_series.SLO_OBJECTIVE}{{{PROBES}{of_signal}}}))"
    return f"{tiles('bad_events', EACH_SLO)} / ({tiles('events', EACH_SLO)} > 0) / {allowed}"


def _p99_of(signal: str, offset: str = "") -> str:
    return f'max by (target, workload) ({RECORDED_P99}{{{PROBES},signal="{signal}"}}{offset})'


def _trend(signal: str) -> str:
    before = _p99_of(signal, f" offset {WINDOW}")
    return answering(f"max by (target) ({_p99_of(signal)} / {before})")


def _of_worst(expr: str) -> str:
    """PromQL that limits `expr`, which is by SLO, to each target's SLO with the least remaining budget."""
    return f"{expr} and bottomk by (target) (1, min by ({EACH_SLO}) ({BUDGET_LEFT}{{{PROBES}}}))"


def _targets() -> Panel:
    objective = f"max by ({EACH_SLO}) ({slo_series.SLO_OBJECTIVE}{{{PROBES}}})"
    events, budget = (
        f"min by ({EACH_SLO}) ({name}{{{PROBES}}})" for name in (slo_series.SLO_WINDOW_EVENTS, BUDGET_LEFT)
    )
    left = f"(1 - {objective}) * {events} * {budget}"  # number of events that may still be bad
    bad_now, events_now = (
        increase(declared, EACH_SLO, window=NOW) for declared in (slo_series.SLO_BAD_EVENTS, slo_series.SLO_EVENTS)
    )
    bad_rate, event_rate = (
        f"sum by ({EACH_SLO}) (rate({declared}{{{PROBES}}}[{WINDOW}]))"
        for declared in (slo_series.SLO_BAD_EVENTS, slo_series.SLO_EVENTS)
    )
    # One diagnosed cause per target, after the word `confirmed` or `probable`.
    causes = f'label_join({diagnosis_series.CAUSE}{{{TARGET}}}, "cause", " ", "state", "cause")'
    happening = f"topk by (target) (1, max by (target, cause) ({causes}))"
    begun = f'ALERTS_FOR_STATE{{{TARGET},alertname=~"LLM.+"}} and ignoring (alertstate) {FIRING}'
    failures = f"topk by (target) (1, {increase(probe_series.FAILURES, 'target, reason', window=RECENTLY)} > 0.5)"
    alerts = f"count by (target) (group by ({ALERT}) ({FIRING})) or 0 * group by (target) ({SLO_STATE}{{{TARGET}}})"
    good, good_now = f"(1 - (1 - {objective}) * (1 - {budget}))", f"(1 - {bad_now} / ({events_now} > 0))"
    gone = f"min by (target) (clamp_min({left}, 0) / ({bad_rate} > (1 - {objective}) * {event_rate}))"
    free = f"min by (target) ({least_headroom('lower')})"
    share: Json = {"unit": "percentunit", "width": 84, "empty": "–"}
    ratio: Json = {"unit": "percentunit", "width": 68, "decimals": 0}
    columns = [
        target_column(width=120),
        Column("State", target_state(), mappings=TARGET_STATES, width=62),
        Column("SLOs", slo_state("target"), mappings=SLO_STATES, width=70),
        Column("Alerts", alerts, unit="none", steps=ANY_IS_BAD, width=62),
        Column("Since", f"1000 * min by (target) ({begun})", unit="dateTimeFromNow", width=120, empty="–"),
        Column("Fails with", failures, "reason", mappings=FAILURE_WORDS, width=134, empty="–"),
        Column("What happens", happening, "cause", mappings=CAUSE_WORDS, width=120, empty="–"),
        Column("Worst SLO", label="slo", width=92, empty="–"),
        Column(f"Good, {NOW}", _of_worst(good_now), decimals=1, **share),
        Column("Good", _of_worst(good), decimals=2, **share),
        Column("Objective", _of_worst(objective), decimals=2, **share),
        Column("Bad left", _of_worst(f"floor({left})"), unit="none", steps=LEFT_STEPS, decimals=0, width=76),
        Column("Budget", _of_worst(budget), steps=BUDGET_STEPS, **ratio),
        Column("Gone in", gone, unit="s", steps=SOON, width=80, decimals=1, empty="–"),
        Column("Free ≥", free, steps=HEADROOM_STEPS, empty="–", **ratio),
    ]
    return table(
        "Targets",
        "Each target in its worst state: the most frequent failure of 15 minutes, what happens by the diagnosis, since when the "
        "condition of its oldest firing alert holds, and of its SLO with the least budget the share of good events now (5 minutes) "
        "and over the SLO's window, the objective, how many more events of that window may be bad, and the budget. Gone in: when "
        "the first budget of the target is gone, at the earliest, if events stay as bad as over the selected window; empty where no "
        "SLO's burn rate over it is above 1, as no budget is ever gone at that rate. Free: lower bound of the free share of "
        "the capacity. Bad: red cells. The order is that of the alerts, then of the budgets.",
        columns,
        sort=("-Alerts", "Budget"),
        hide=("workload",),
        height=10,
    )


def _headroom() -> Panel:
    lower = f"min by (target) ({least_headroom('lower')})"
    return bars(
        "Least headroom",
        "Lower bound of the free share of the capacity of the twenty targets with the least, the least first. "
        "Bad: near 0, or below: the demand is above what the target is known to serve.",
        "percentunit",
        now(f"sort(bottomk(20, {lower}))", "{{target}}"),
        steps=HEADROOM_STEPS,
        low=-1,
        high=1,
        decimals=0,
        empty="unknown: the capacity dashboard says why",
    )


def _incidents() -> Panel:
    """Panel of incidents as counts by kind, readable for any number of targets."""

    def changes(match: str) -> str:
        return f"sum(max by (target) (increase({engines_series.ENGINE_CHANGES}{{{TARGET},change{match}}}[{STEP}])) > bool 0) or {KNOWN}"

    drifting = f'count(max by (target) ({drift_series.DRIFT_ACTIVE}{{{PROBES},cause!="unusual"}}) == 1) or {KNOWN}'
    sweeping = f"count(max by (target) ({capacity_series.SWEEP_RATE}{{{TARGET}}}) > 0) or {KNOWN}"
    kinds = {
        "critical alerts": (f"count({_alerts('=')}) or {RULES}", RED),
        "other alerts": (f"count({_alerts('!=')}) or {RULES}", ORANGE),
        "restarts": (changes('="restart"'), "purple"),
        "deployments": (changes('=~"engine|version|model|flags|driver"'), "blue"),
        "drift": (drifting, YELLOW),
        "sweeps": (sweeping, GREY),
    }
    return states(
        "Incidents",
        "What happened, on one time line: how many alerts fire, and how many targets restarted, changed (engine, version, model, flags "
        "or driver), drift or are swept. Empty: none. Bad: an alert just after a restart or deployment, on which to look first. "
        "No band of alerts: Prometheus has not loaded the prober's rules.",
        index_mapping(("", "transparent")),
        *(Query(expr, name) for name, (expr, _) in kinds.items()),
        overrides=[
            named(name, ("thresholds", {"mode": "absolute", "steps": as_steps(((None, "transparent"), (1, color)))}))
            for name, (_, color) in kinds.items()
        ],
        width=15,
        interval=EVENT_INTERVAL,
        decimals=0,
    )


def _firing() -> Panel:
    firing = f"group by ({ALERT}) ({FIRING} or {PROBER})"
    columns = [
        Column("Severity", firing, "severity", mappings=text_mapping(SEVERITIES), width=85),
        Column("Alert", label="alertname", width=230),
        target_column(empty="–"),
        Column("Workload", label="workload", width=90, empty="–"),
        Column("SLO", label="slo", width=80, empty="–"),
        Column("Cause", label="cause", width=90, empty="–"),
    ]
    return table(
        "Firing alerts",
        "Firing alerts of these targets and of the probers. Bad: any; critical ones first. "
        "The alert message links to the runbook.",
        columns,
        sort="Severity",
        width=14,
        empty="no alert is firing",
    )


def _latencies() -> Panel:
    trend: Json = {"unit": "none", "steps": TREND, "width": 120, "decimals": 2, "empty": "–"}
    burn: Json = {"unit": "none", "steps": OF_LIMIT, "width": 95, "decimals": 2, "empty": "–"}
    columns = [target_column(width=150)]
    for signal, name in (("ttft", "TTFT"), ("itl", "ITL")):
        p50, p99 = quantile(0.5, f"llmslo_{signal}_seconds", window=NOW), _p99_of(signal)
        columns += [
            Column(f"{name} p50, {NOW}", answering(f"max by (target) ({p50})"), unit="s", width=114),
            Column(f"{name} p99", answering(f"max by (target) ({p99})"), unit="s", width=84),
            Column(f"{name} ÷ before", _trend(signal), **trend),
            Column(f"{name} burn", f"max by (target) ({_burn(signal)})", **burn),
        ]
    fewest = f"min by (target) ({samples(probe_series.TTFT, window=RECORDED_WINDOW)})"
    columns.append(Column("Samples", fewest, unit="none", steps=FEW, decimals=0, width=90))
    return table(
        "Latencies",
        f"Of the slowest workload of each target: the median of the last 5 minutes, and p99 of {RECORDED_WINDOW} as the rules "
        "record it every few minutes. ÷ before: that p99 relative to the one a selected window earlier. Burn: how fast the worst "
        "TTFT and ITL SLO spent their budgets over the selected window. Bad: ÷ before or a burn above 1. A failing target has no "
        "latency. Orange samples: fewer than 1,000, too few for a p99.",
        columns,
        sort="-TTFT ÷ before",
    )


def _p99(signal: str, name: str, description: str) -> Panel:
    p99 = _p99_of(signal)
    enough = f"{samples(f'llmslo_{signal}_seconds', window=RECORDED_WINDOW)} >= {MIN_P99_SAMPLES}"
    # A threshold for 95% is no limit. Evaluated at the end of the range, so that Prometheus looks it up only once.
    of_p99 = f"max by ({EACH_SLO}) ({slo_series.SLO_OBJECTIVE}{{{PROBES}}} @ end()) > 0.9895 < 0.9905"
    return series(
        f"{name} p99 by target",
        f"{description} of the slowest workload over {RECORDED_WINDOW}, on a logarithmic axis. Grey dots: fewer than 1,000 "
        "samples. Bad: above the dashed limit that an SLO of 99% has now, or rising.",
        "s",
        Query(f"max by (target) ({p99})", "{{target}}"),
        Query(f"max by (target) ({p99} unless {enough})", "{{target}}, few samples"),
        Query(f"min by (target) ({limit(signal, at=' @ end()')} and on ({EACH_SLO}) {of_p99})", "limit of {{target}}"),
        width=12,
        low=None,
        custom={"scaleDistribution": LOGARITHMIC, "lineWidth": 2},
        empty="",  # otherwise the axis shows it for ticks without a label
        overrides=[dashed("limit of .*"), dotted("B")],
        interval=SLOW_STEP,
    )
