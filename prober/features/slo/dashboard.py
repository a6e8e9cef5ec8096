"""Error budget dashboard: what is left, burn rates, and where bad events come from."""

from prober.exposition.dashboards.board import (
    BUDGET_STEPS,
    SEVERITIES,
    SLO_STATES,
    Board,
    Collapsed,
    Rows,
    target_column,
)
from prober.exposition.dashboards.panels import Column, Panel, Query, now, series, stat, states, table
from prober.exposition.dashboards.queries import (
    BAD_RATIO,
    BUDGET_LEFT,
    BUDGET_RATIO,
    FIRING,
    PROBES,
    TARGET,
    increase,
    slo_state,
)
from prober.exposition.dashboards.style import GREEN, ORANGE, RED, SYMLOG, YELLOW, dashed, index_mapping, text_mapping
from prober.exposition.families import AnySeries
from prober.features.slo import series as slo_series
from prober.measure.objective import PAIRS, promql

SLOS = f'{PROBES},slo=~"$slo"'
LEVEL = "target, workload, slo"
WINDOWS = sorted({window_s for pair in PAIRS for window_s in (pair.short_s, pair.long_s)})
TRAFFIC = f'{TARGET},slo=~"$slo"'
TRAFFIC_LEVEL = "target, slo"
AGREEMENT = index_mapping(
    ("both within the budget", GREEN),
    ("probes over, all requests within: perhaps the network or a gateway, failures, or a cold prefix cache", ORANGE),
    (
        "all requests over, probes within: perhaps longer prompts or answers of users, or fewer prefix hits",
        ORANGE,
    ),
    ("both over the budget", RED),
)
BURNS = (
    (None, GREEN),
    *zip(sorted(float(pair.burn) for pair in PAIRS), (YELLOW, ORANGE, RED, "dark-red"), strict=True),
)


def board() -> Board:
    """The dashboard `slo`."""
    rows: Rows = {
        "": [
            _table(),
            states(
                "States over time",
                "State of each SLO over its own window. Bad: red, missed. Grey is no data: unknown.",
                SLO_STATES,
                Query(slo_state(LEVEL, SLOS), "{{target}} {{workload}} {{slo}}"),
                width=12,
                height=9,
            ),
            _left(),
        ],
        "Burn rates": [
            series(
                "Burn rate of $slo, by window",
                "Burn rate of the worst selected target over each window; no line: too few events. Bad: 1h and 5m above 14.4 or 6h and "
                "30m above 6, which page, 1d and 2h above 3 or 3d and 6h above 1.",
                "none",
                *(
                    Query(f"max({BAD_RATIO}{window}{{{SLOS}}} / {BUDGET_RATIO}{{{SLOS}}})", window)
                    for window in map(promql, WINDOWS)
                ),
                low=None,
                decimals=1,
                steps=BURNS,
                custom={
                    "thresholdsStyle": {"mode": "line"},
                    "scaleDistribution": SYMLOG,
                    "lineWidth": 2,
                    "axisSoftMin": 0,
                    "axisSoftMax": 20,
                },
                empty="",  # otherwise the axis shows it for ticks without a label
                repeat="slo",
                width=24,
                height=9,
            ),
            _fastest(),
            _firing(),
        ],
        "Bad events": [_where(), _shares()],
        "Probes and users": _users(),
    }
    text = "Error budgets: remaining budget, burn rates against the alert thresholds, and the sources of bad events."
    return Board("slo", text, rows, variables=("target", "workload", "slo", "window"))


def stats() -> list[Panel]:
    """Panels of the worst SLO and the lowest remaining budget of one target."""
    return [
        stat(
            "SLOs",
            "The worst of its SLOs over their own windows. Bad: missed; no data means that nobody can say.",
            "none",
            now(slo_state("target")),
            mappings=SLO_STATES,
            fill="background",
        ),
        stat(
            "Budget left",
            "The least error budget that is left. Bad: below 0; of enough events, the SLO is missed.",
            "percentunit",
            now(f"min({BUDGET_LEFT}{{{PROBES}}})"),
            steps=BUDGET_STEPS,
            decimals=0,
        ),
    ]


def _table() -> Panel:
    left, objective = (
        f"min by ({LEVEL}) ({BUDGET_LEFT}{{{SLOS}}})",
        f"max by ({LEVEL}) ({slo_series.SLO_OBJECTIVE}{{{SLOS}}})",
    )
    threshold = f"max by ({LEVEL}) ({slo_series.SLO_THRESHOLD}{{{SLOS}}})"
    bad, events = (
        increase(declared, LEVEL, select=SLOS, window="$__range")
        for declared in (slo_series.SLO_BAD_EVENTS, slo_series.SLO_EVENTS)
    )
    columns = [
        target_column(),
        Column("Workload", label="workload"),
        Column("SLO", label="slo"),
        Column("State", slo_state(LEVEL, SLOS), mappings=SLO_STATES, width=90),
        Column("Budget left", left, unit="percentunit", steps=BUDGET_STEPS, width=110, decimals=1),
        Column("Objective", objective, unit="percentunit", width=100, decimals=2),
        Column("Good up to", threshold, unit="s", width=100, empty="–"),
        Column("Bad in this range", bad, unit="none", width=148, decimals=0),
        Column("Events in this range", events, unit="none", width=170, decimals=0),
    ]
    return table(
        "SLOs",
        "State of each SLO over its own window, and its remaining error budget. Bad: missed, or a budget near 0.",
        columns,
        sort="Budget left",
    )


def _left() -> Panel:
    def left(at: str = "") -> str:
        return f"min by ({LEVEL}) ({BUDGET_LEFT}{{{SLOS}}}{at})"

    return series(
        "Lowest ten error budgets",
        "The ten lowest remaining error budgets: 100% is the whole budget; below 0, of enough events, the SLO is missed. "
        "Bad: a line that falls towards 0. The axis ends at -100%.",
        "percentunit",
        Query(f"{left()} and bottomk(10, {left(' @ end()')})", "{{target}} {{workload}} {{slo}}"),
        low=-1,
        high=1,
        steps=((None, RED), (0, "transparent")),
        custom={"thresholdsStyle": {"mode": "line"}},
        width=12,
        height=9,
    )


def _fastest() -> Panel:
    bad = f'label_replace({{__name__=~"{BAD_RATIO}.+",{SLOS}}}, "long", "$1", "__name__", "{BAD_RATIO}(.+)")'
    burn_rate = f"{bad} / ignoring (long) group_left () {BUDGET_RATIO}{{{SLOS}}}"
    fastest = f"topk(20, max by ({LEVEL}, long) ({burn_rate}))"
    columns = [
        target_column(),
        Column("Workload", label="workload", width=100),
        Column("SLO", label="slo", width=90),
        Column("Window", label="long", width=75),
        Column("Burn rate", fastest, unit="none", steps=BURNS, width=90, decimals=1),
    ]
    return table(
        "Fastest burns",
        "The twenty highest burn rates over any window. Bad: above 1, the budget does not last for the SLO window; "
        "above 6, a critical alert may follow.",
        columns,
        sort="-Burn rate",
        width=12,
        height=9,
    )


def _firing() -> Panel:
    budgets = FIRING.replace("LLM.+", "LLMErrorBudgetBurn|LLMErrorBudgetBurnOfTraffic|LLMSLONoData")
    firing = f"group by (target, severity, alertname, workload, slo) ({budgets})"
    columns = [
        target_column(empty="–"),
        Column("Severity", firing, label="severity", mappings=text_mapping(SEVERITIES), width=85),
        Column("Alert", label="alertname", width=190),
        Column("Workload", label="workload", width=90, empty="–"),
        Column("SLO", label="slo", width=80, empty="–"),
    ]
    return table(
        "Firing SLO alerts",
        "Firing alerts on error budgets and missing data. Bad: any; critical ones first.",
        columns,
        sort="Severity",
        width=12,
        height=9,
        empty="no alert is firing",
    )


def _where() -> Panel:
    bad = increase(slo_series.SLO_BAD_EVENTS, "target, workload, slo", select=SLOS, window="$__range")
    return series(
        "Bad events, top ten",
        "Bad events of the ten SLOs and workloads with most of them in this range, and answers that are no event, as the prober read "
        "them too late to know on which side of the threshold they are (undecided). Bad: one that stands out.",
        "short",
        Query(
            f"{increase(slo_series.SLO_BAD_EVENTS, LEVEL, select=SLOS)} and topk(10, {bad} > 0)",
            "{{target}} {{workload}} {{slo}}",
        ),
        Query(
            f"{increase(slo_series.SLO_UNDECIDED, LEVEL, select=SLOS)} > 0",
            "{{target}} {{workload}} {{slo}}, undecided",
        ),
        bars=True,
        width=12,
        empty="no bad events in this range, or no data",
    )


def _shares() -> Panel:
    bad, events = (
        increase(declared, LEVEL, select=SLOS, window="$window")
        for declared in (slo_series.SLO_BAD_EVENTS, slo_series.SLO_EVENTS)
    )
    return series(
        "Share of bad events",
        "Share of bad events in the selected window, from exact counters, not buckets. "
        "Bad: above the share that the objective allows, dashed.",
        "percentunit",
        Query(f"{bad} / ({events} > 0)", "{{target}} {{workload}} {{slo}}"),
        Query(f"1 - max by (slo) ({slo_series.SLO_OBJECTIVE}{{{SLOS}}})", "allowed by {{slo}}"),
        width=12,
        overrides=[dashed("allowed by .*")],
    )


def _users() -> Collapsed:
    """Collapsed row that compares SLOs on probes with the same SLOs on all requests of the engine (`metrics.slos`)."""

    def share(bad: AnySeries, events: AnySeries, select: str) -> str:
        above, of = (increase(declared, TRAFFIC_LEVEL, select=select, window="$window") for declared in (bad, events))
        return f"{above} / ({of} > 0)"

    objective = f"{slo_series.TRAFFIC_OBJECTIVE}{{{TRAFFIC}}}"
    allowed = f"1 - max by ({TRAFFIC_LEVEL}) ({objective})"
    probes = share(slo_series.SLO_BAD_EVENTS, slo_series.SLO_EVENTS, SLOS)
    users = share(slo_series.TRAFFIC_BAD_EVENTS, slo_series.TRAFFIC_EVENTS, TRAFFIC)
    bound = f"max by ({TRAFFIC_LEVEL}) ({slo_series.TRAFFIC_THRESHOLD}{{{TRAFFIC}}})"
    left = f"min by ({TRAFFIC_LEVEL}) ({slo_series.TRAFFIC_BUDGET_LEFT}{{{TRAFFIC}}})"
    both = f"2 * ({users} > bool {allowed}) + ({probes} > bool {allowed})"
    columns = [
        target_column(),
        Column("SLO", label="slo", width=90),
        Column("In the window", both, mappings=AGREEMENT),
        Column("Bad of the probes", f"{probes} and {allowed}", unit="percentunit", width=130, decimals=2),
        Column("Bad of all requests", users, unit="percentunit", width=145, decimals=2),
        Column("Allowed", allowed, unit="percentunit", width=85, decimals=2),
        Column("Judged up to", bound, unit="s", width=105),
        Column("Users' budget left", left, unit="percentunit", steps=BUDGET_STEPS, width=140),
    ]
    panels = [
        table(
            "Do probes and users agree?",
            "Whether more events are bad than allowed in the selected window: of the probes, and of all requests by the engine's "
            "own histogram or counters. Judged up to: its bound next to the threshold. Bad: all requests over. "
            "No data: no events of one of the two, or no such histogram or counter.",
            columns,
            sort="Users' budget left",
        ),
        series(
            "Share of bad events of $slo: probes and all requests",
            "Share of bad events in the selected window, of the probes and of all requests of the engine. "
            "Bad: above the share that the objective allows, dashed; only one of the two: see the table for why that can be.",
            "percentunit",
            Query(f"{probes} and {allowed}", "{{target}} {{slo}} probes"),
            Query(users, "{{target}} {{slo}} all requests"),
            Query(f"max by (slo) ({allowed})", "allowed by {{slo}}"),
            width=24,
            repeat="slo",
            overrides=[dashed("allowed by .*")],
        ),
    ]
    declared = f"{slo_series.SLO_OBJECTIVE}{{{SLOS}}}"
    return Collapsed(panels, "traffic", {"both judged": objective, "no target has `metrics.slos`": declared})
