"""Error budgets: what is left, how fast it goes, and where it goes to."""

from prober.features.grafana.dashboards.board import Board, to_target
from prober.features.grafana.dashboards.overview import FIRING, LEFT, SEVERITIES, SLO_WORDS
from prober.features.grafana.dashboards.panels import (
    GREEN,
    ORANGE,
    RED,
    YELLOW,
    Column,
    Panel,
    Query,
    coloured,
    dashed,
    row,
    series,
    states,
    table,
)
from prober.features.grafana.dashboards.queries import BUDGET_LEFT, PROBES, RECORDED, increase, slo_state
from prober.measure.burn_rate_windows import CITED

SLOS = f'{PROBES},slo=~"$slo"'
LEVEL = "target, workload, slo"
BURNS = (
    (None, GREEN),
    *zip(sorted(float(pair.burn) for pair in CITED), (YELLOW, ORANGE, RED, "dark-red"), strict=True),
)


def burn(by: str) -> str:
    """Burn rates over all windows that the rules have, whatever the SLO's own: the largest of each set of labels."""
    ratios = f'{{__name__=~"{RECORDED}_bad_events:ratio_rate.+",{SLOS}}}'
    named = f'label_replace({ratios}, "window", "$1", "__name__", ".+:ratio_rate(.+)")'
    allowed = f"(1 - max by ({LEVEL}) (llmslo_slo_objective_ratio{{{SLOS}}}))"
    return f"max by ({by}) ({named} / on ({LEVEL}) group_left () {allowed})"


def board() -> Board:
    """The dashboard."""
    rows = {
        "": [_table(), _history(), _left()],
        "How fast": [_rates(), _fastest(), _firing()],
        "Where": [_where(), _shares()],
    }
    text = "Error budgets: what is left of each, how fast it burns against the thresholds of the alerts, and who spends it."
    return Board("slo", text, rows, variables=("target", "workload", "slo", "window"))


def _table() -> Panel:
    columns = [
        Column(source="target", name="Target", link=to_target("target"), link_title="The target in detail"),
        Column(source="workload", name="Workload"),
        Column(source="slo", name="SLO"),
        Column(source="Value #A", name="State", mappings=SLO_WORDS, width=90),
        Column(source="Value #B", name="Budget left", unit="percentunit", steps=LEFT, width=110, decimals=1),
        Column(source="Value #C", name="Objective", unit="percentunit", width=100, decimals=2),
        Column(source="Value #D", name="Good up to", unit="s", width=100, empty="–"),
        Column(source="Value #E", name="Bad in this range", unit="none", width=130, decimals=0),
        Column(source="Value #F", name="Events in this range", unit="none", width=150, decimals=0),
    ]
    return table(
        "SLOs",
        "Each SLO over its own window: met, missed, or no data, and what is left of its budget. "
        "Bad: missed, and a budget that is nearly used up long before its window ends.",
        columns,
        row(slo_state(LEVEL).replace(PROBES, SLOS)),
        row(f"min by ({LEVEL}) ({BUDGET_LEFT}{{{SLOS}}})"),
        row(f"max by ({LEVEL}) (llmslo_slo_objective_ratio{{{SLOS}}})"),
        row(f"max by ({LEVEL}) (llmslo_slo_threshold_seconds{{{SLOS}}})"),
        row(increase("llmslo_slo_bad_events_total", LEVEL, select=SLOS, window="$__range")),
        row(increase("llmslo_slo_events_total", LEVEL, select=SLOS, window="$__range")),
        sort="Budget left",
    )


def _history() -> Panel:
    return states(
        "States over time",
        "Each SLO over its own window, when. Bad: red, missed; grey is no data, which is neither good nor bad.",
        SLO_WORDS,
        Query(slo_state(LEVEL).replace(PROBES, SLOS), "{{target}} {{workload}} {{slo}}"),
        width=12,
        height=9,
    )


def _left() -> Panel:
    def left(at: str = "") -> str:
        return f"min by ({LEVEL}) ({BUDGET_LEFT}{{{SLOS}}}{at})"

    return series(
        "Budget left, the least ten",
        "What is left of the ten error budgets that have least now: 100% is all of it, below 0 the SLO is missed. "
        "Bad: a line that will cross 0 before its window has passed. Below -100% it is cut off.",
        "percentunit",
        Query(f"{left()} and bottomk(10, {left(' @ end()')})", "{{target}} {{workload}} {{slo}}"),
        low=-1,
        high=1,
        steps=((None, RED), (0, "transparent")),
        custom={"thresholdsStyle": {"mode": "line"}},
        width=12,
        height=9,
    )


def _rates() -> Panel:
    return series(
        "Burn rate of $slo, by window",
        "How many times faster than allowed the budget burns over each window, of the selected targets' worst. Bad: a long window "
        "and its short one (1h and 5m, 6h and 30m, 1d and 2h, 3d and 6h of a 30-day SLO) both above 14.4, 6, 3 or 1.",
        "none",
        Query(burn("window"), "{{window}}"),
        low=None,
        decimals=1,
        steps=BURNS,
        custom={
            "thresholdsStyle": {"mode": "line"},
            "scaleDistribution": {"type": "symlog", "log": 10, "linearThreshold": 1},
            "lineWidth": 2,
            "axisSoftMin": 0,
            "axisSoftMax": 20,
        },
        empty="",  # else its axis shows that for ticks without a label
        repeat="slo",
        width=24,
        height=9,
    )


def _fastest() -> Panel:
    columns = [
        Column(source="target", name="Target", link=to_target("target"), link_title="The target in detail"),
        Column(source="workload", name="Workload", width=100),
        Column(source="slo", name="SLO", width=90),
        Column(source="window", name="Window", width=75),
        Column(source="Value #A", name="Burn rate", unit="none", steps=BURNS, width=90, decimals=1),
        Column(source="Value", name="Burn rate", unit="none", steps=BURNS, width=90, decimals=1),
    ]
    return table(
        "Fastest burns",
        "The twenty fastest burn rates now, over any window. Bad: above 1 the budget does not last its window; "
        "above 6 a page is near.",
        columns,
        row(f"topk(20, {burn(f'{LEVEL}, window')})"),
        sort="-Burn rate",
        width=12,
        height=9,
    )


def _firing() -> Panel:
    columns = [
        Column(source="target", name="Target", link=to_target("target"), link_title="The target in detail", empty="–"),
        Column(source="severity", name="Severity", mappings=coloured(SEVERITIES), width=85),
        Column(source="alertname", name="Alert", width=190),
        Column(source="workload", name="Workload", width=90, empty="–"),
        Column(source="slo", name="SLO", width=80, empty="–"),
        Column(source="long", name="Window", width=70, empty="–"),
    ]
    labels = ", ".join(column.source for column in columns)
    budgets = FIRING.replace("LLM.+", "LLMErrorBudgetBurn|LLMPercentileSLOBreach|LLMSLONoData")
    return table(
        "What fires of SLOs",
        "Alerts on budgets, percentiles and missing data that fire now. Bad: any; critical ones cost users now.",
        columns,
        row(f"group by ({labels}) ({budgets})"),
        sort="Severity",
        hide=("Value", "Value #A"),
        width=12,
        height=9,
        empty="nothing fires",
    )


def _where() -> Panel:
    bad = increase("llmslo_slo_bad_events_total", "target, workload, slo", select=SLOS, window="$__range")
    return series(
        "Bad events, the worst ten",
        "Where the budgets go: bad events of the ten SLOs and workloads that had most in this range. Bad: one that stands out.",
        "short",
        Query(
            f"{increase('llmslo_slo_bad_events_total', LEVEL, select=SLOS)} and topk(10, {bad} > 0)",
            "{{target}} {{workload}} {{slo}}",
        ),
        bars=True,
        width=12,
        empty="no bad events in this range, or no data",
    )


def _shares() -> Panel:
    bad, events = (
        increase(f"llmslo_slo_{kind}_total", LEVEL, select=SLOS, window="$window") for kind in ("bad_events", "events")
    )
    return series(
        "Share of bad events",
        "Bad events over all events of the chosen window, exact whatever the buckets. "
        "Bad: above the share that the objective leaves, dashed.",
        "percentunit",
        Query(f"{bad} / ({events} > 0)", "{{target}} {{workload}} {{slo}}"),
        Query(f"1 - max by (slo) (llmslo_slo_objective_ratio{{{SLOS}}})", "allowed by {{slo}}"),
        width=12,
        overrides=[dashed("allowed by .*")],
    )
