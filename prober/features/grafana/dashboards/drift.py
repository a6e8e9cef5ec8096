"""Drift and the prober itself: is it slower than it was, and may these figures be trusted?"""

from prober.features.grafana.dashboards.board import Board, to_target
from prober.features.grafana.dashboards.panels import (
    GREEN,
    GREY,
    NEUTRAL,
    ORANGE,
    RED,
    YELLOW,
    Column,
    Panel,
    Query,
    coloured,
    named,
    now,
    row,
    series,
    stat,
    states,
    table,
    words,
)
from prober.features.grafana.dashboards.queries import INSTANCE, PROBES, STEP, TARGET, increase, judged, quantile

SIGNAL = "target, workload, signal"
WHICH = "{{target}} {{workload}} {{signal}}"
NEAR = ((None, GREEN), (0.5, YELLOW), (1, RED))
PHASES = {"learning": GREY, "provisional": YELLOW, "settled": GREEN}
SHED = ',reason="shed"'
YES = words(("no", RED), ("yes", GREEN))


def board() -> Board:
    """The dashboard."""
    rows = {
        "": [_table()],
        "Evidence": [_evidence(), _active(), _shift(), _events()],
        "The prober": [*_prober(), *_grafana()],
        "Its probes": _probes(),
        "Where its targets come from": _sources(),
    }
    text = "Latencies against their own baselines, with the evidence; and whether the prober itself can be believed."
    return Board("drift", text, rows, variables=("target", "workload", "instance"))


def _shifted(bound: str) -> str:
    return f'max by ({SIGNAL}) (llmslo_drift_shift_ratio{{{PROBES},quantile="0.5",bound="{bound}"}})'


def _table() -> Panel:
    columns = [
        Column(source="target", name="Target", link=to_target("target"), link_title="The target in detail"),
        Column(source="workload", name="Workload"),
        Column(source="signal", name="Signal", width=80),
        Column(source="phase", name="Baseline", width=100, mappings=coloured(PHASES)),
        Column(source="Value #B", name="Evidence", unit="percentunit", width=85, steps=NEAR, decimals=0, empty="–"),
        Column(source="cause", name="Cause", width=100, empty="–"),
        Column(source="Value #D", name="Since", unit="dateTimeFromNow", width=130, empty="–"),
        Column(source="Value #E", name="Median ×", unit="none", width=90, decimals=2, empty="–"),
        Column(source="Value #F", name="at least ×", unit="none", width=90, decimals=2, empty="–"),
        Column(source="Value #G", name="at most ×", unit="none", width=90, decimals=2, empty="–"),
    ]
    return table(
        "Latencies against their baselines",
        "What each baseline is (learning says nothing yet, provisional is rough, settled), the evidence that the latency is slower "
        "(100% alarms), and for a drift its cause, since when, and its median over the baseline's with a 95% interval. "
        "Bad: red evidence. A dash: no drift.",
        columns,
        row(f"max by ({SIGNAL}, phase) (llmslo_drift_phase{{{PROBES}}}) == 1"),
        row(f"max by ({SIGNAL}) (llmslo_drift_evidence_ratio{{{PROBES}}}) and on ({SIGNAL}) {judged()}"),
        row(f"max by ({SIGNAL}, cause) (llmslo_drift_active{{{PROBES}}}) == 1"),
        row(f"1000 * max by ({SIGNAL}) (llmslo_drift_since_timestamp_seconds{{{PROBES}}})"),
        row(_shifted("estimate")),
        row(_shifted("lower")),
        row(_shifted("upper")),
        sort="-Evidence",
        hide=("Value #A", "Value #C"),
    )


def _evidence() -> Panel:
    return series(
        "Evidence",
        "Evidence that a latency is slower than its own baseline, on a log scale. Bad: at 1, dashed, it alarms; "
        "a line that climbs steadily will get there. A baseline that is being learnt has no line.",
        "none",
        Query(f"max by ({SIGNAL}) (llmslo_drift_evidence_ratio{{{PROBES}}}) and on ({SIGNAL}) {judged()}", WHICH),
        steps=((None, GREEN), (1, RED)),
        custom={"thresholdsStyle": {"mode": "dashed"}, "axisSoftMax": 1.2},
        width=12,
        empty="learning, or no data",
    )


def _active() -> Panel:
    codes = " or ".join(
        f'{place} * (llmslo_drift_active{{{PROBES},cause="{cause}"}} == 1)'
        for place, cause in enumerate(("unknown", "load", "regression"), 2)
    )
    return states(
        "Drift over time",
        "Which latency was slower than its baseline, when and why: regression is slower at the same load, load is a busier engine, "
        "unknown if its load is not known. Bad: regression; learning, in grey, says nothing: there is no baseline yet.",
        words(("learning", GREY), ("none", GREEN), ("unknown", YELLOW), ("load", ORANGE), ("regression", RED)),
        Query(
            f"max by ({SIGNAL}) ({codes} or {judged()} or 0 * llmslo_drift_evidence_ratio{{{PROBES}}})", WHICH
        ),
        width=12,
    )  # fmt: skip


def _shift() -> Panel:
    return series(
        "Size of the shift",
        "Median and p99 since the change over the baseline's at the same load, with 95% intervals; only those with enough samples. "
        "Bad: a lower bound well above 1. No data: no drift.",
        "none",
        *(
            Query(
                f'max by ({SIGNAL}, quantile) (llmslo_drift_shift_ratio{{{PROBES},quantile=~"0.5|0.99",bound="{bound}"}})',
                f"{{{{target}}}} {{{{workload}}}} {{{{signal}}}} q{{{{quantile}}}} {bound}",
            )
            for bound in ("lower", "estimate", "upper")
        ),
        low=None,
        decimals=2,
        steps=((None, "transparent"), (1, GREY)),
        custom={"thresholdsStyle": {"mode": "line"}},
        overrides=[
            named(".*(lower|upper)", ("custom.lineStyle", {"fill": "dot", "dash": [2, 4]}), ("custom.fillOpacity", 0))
        ],
        width=12,
        empty="no drift is known",
    )


def _events() -> Panel:
    happened = increase("llmslo_drift_events_total", "signal, event", window="$__range")
    return stat(
        "What happened to the baselines",
        "In this range: baselines learnt, alarms, recoveries, improvements and drifts that were accepted. "
        "Bad: improved and learnt again and again; the baseline is never old enough to judge by.",
        "none",
        now(f"{happened} > 0", "{{signal}} {{event}}"),
        steps=NEUTRAL,
        decimals=0,
        text_mode="value_and_name",
        width=12,
        height=8,
        empty="nothing in this range",
    )


def _prober() -> list[Panel]:
    return [
        stat(
            "Trusted",
            "Whether each prober was in time over the last 5 minutes. Bad: no; it lacks processor time, and its SLOs have no data.",
            "none",
            now(f"min by (instance) (llmslo_trusted{{{INSTANCE}}})", "{{instance}}"),
            mappings=YES,
            steps=((None, RED), (1, GREEN)),
            fill="background",
            width=6,
        ),
        stat(
            "Configuration taken over",
            "Whether the latest reload was taken over. Bad: no; the prober goes on with the one before.",
            "none",
            now(f"min by (instance) (llmslo_config_last_reload_successful{{{INSTANCE}}})", "{{instance}}"),
            mappings=YES,
            steps=((None, RED), (1, GREEN)),
            fill="background",
            width=6,
        ),
        stat(
            "Latest configuration",
            "When a configuration was last taken over. Bad: before your last change of it.",
            "dateTimeFromNow",
            now(
                f"1000 * max by (instance) (llmslo_config_last_reload_success_timestamp_seconds{{{INSTANCE}}})",
                "{{instance}}",
            ),
            steps=NEUTRAL,
            width=6,
        ),
        stat(
            "Version",
            "Which version each prober is. Bad: several, longer than a rollout takes.",
            "none",
            now(f"max by (instance, version) (llmslo_build_info{{{INSTANCE}}})", "{{version}} at {{instance}}"),
            steps=NEUTRAL,
            width=6,
            text_mode="name",
        ),
        series(
            "Send lag, p99",
            "The prober's own lateness in sending. Bad: above max_send_lag (10 ms unless configured), dashed; "
            "such probes are invalid.",
            "s",
            Query(
                quantile(0.99, "llmslo_send_lag_seconds", "instance, target", f"{PROBES},{INSTANCE}", STEP),
                "{{target}} at {{instance}}",
            ),
            steps=((None, "transparent"), (0.01, RED)),
            custom={"thresholdsStyle": {"mode": "dashed"}},
            width=12,
        ),
        series(
            "Loop lag, p99",
            "Lateness of the prober's event loop. Bad: some milliseconds and rising; the prober lacks processor time.",
            "s",
            Query(
                quantile(0.99, "llmslo_event_loop_lag_seconds", "instance", INSTANCE, STEP),
                "{{instance}}",
            ),
            steps=((None, "transparent"), (0.01, RED)),
            custom={"thresholdsStyle": {"mode": "dashed"}},
            width=12,
        ),
    ]


def _grafana() -> list[Panel]:
    """Of a prober that keeps dashboards and annotations in Grafana."""
    return [
        stat(
            "Dashboards in Grafana",
            "Dashboards that Grafana has as they should be, and those left alone. Bad: failed; edited ones no longer follow "
            "new releases. No data: the prober is not configured to keep them.",
            "none",
            now(f"max by (state) (llmslo_grafana_dashboards{{{INSTANCE}}}) > 0", "{{state}}"),
            steps=NEUTRAL,
            decimals=0,
            text_mode="value_and_name",
            width=8,
            height=6,
        ),
        stat(
            "Grafana last had all of it",
            "When Grafana last had all that it was given, dashboards and annotations. Bad: days ago. "
            "No data: not configured, or not once.",
            "dateTimeFromNow",
            now(
                f"1000 * max by (what) (llmslo_grafana_sync_last_success_timestamp_seconds{{{INSTANCE}}} > 0)",
                "{{what}}",
            ),
            steps=NEUTRAL,
            width=8,
            height=6,
        ),
        series(
            "Visits to Grafana that failed",
            "Visits to Grafana that failed, for dashboards and for annotations. Bad: any that stay; its address or token is wrong.",
            "short",
            Query(
                f"sum by (what) (increase(llmslo_grafana_sync_failures_total{{{INSTANCE}}}[{STEP}]))",
                "{{what}}",
            ),
            bars=True,
            width=8,
            height=6,
        ),
    ]


def _probes() -> list[Panel]:
    return [
        series(
            "Probes per second",
            "Due times of the schedule, without the neutral ones. Bad: below what is configured.",
            "cps",
            Query(
                f"sum by (target, workload) (rate(llmslo_probes_total{{{PROBES}}}[{STEP}]))", "{{target}} {{workload}}"
            ),
            width=8,
        ),
        series(
            "Not sent, or not believed",
            "Probes kept out of the SLIs by reason, those shed at the cap (which count as failures), and cold ones that the engine "
            "had cached. Bad: invalid above 1%; shed, the target answers too slowly; rejected.",
            "short",
            Query(f"{increase('llmslo_probes_neutral_total', 'target, reason')} > 0", "{{target}} {{reason}}"),
            Query(f"{increase('llmslo_probe_failures_total', 'target, reason', SHED)} > 0", "{{target}} {{reason}}"),
            Query(f"{increase('llmslo_probes_cached_total', 'target')} > 0", "{{target}} cached"),
            Query(f"{increase('llmslo_usage_missing_total', 'target')} > 0", "{{target}} no token counts"),
            bars=True,
            width=8,
            empty="none in this range",
        ),
        series(
            "Probing budgets left",
            "Share of the 24-hour budgets of tokens and dollars that is left. Bad: near 0, then due times are not sent.",
            "percentunit",
            Query(f"min by (target, budget) (llmslo_budget_remaining_ratio{{{TARGET}}})", "{{target}} {{budget}}"),
            high=1,
            width=8,
        ),
        series(
            "Rate limits left",
            "What is left of the server's rate limits, as its headers tell. Bad: near 0, probes and users compete. "
            "No data: it does not tell.",
            "short",
            Query(f"min by (target, kind) (llmslo_rate_limit_remaining{{{TARGET}}})", "{{target}} {{kind}}"),
            width=12,
        ),
        series(
            "Writes to storage that failed",
            "Writes to --storage.path that failed. Bad: any; baselines and sweeps do not survive a restart.",
            "short",
            Query(
                f"sum by (instance) (increase(llmslo_storage_write_failures_total{{{INSTANCE}}}[{STEP}]))",
                "{{instance}}",
            ),
            bars=True,
            width=12,
        ),
    ]


def _sources() -> list[Panel]:
    """Of probers that find their targets, and of several that share them out."""
    return [
        series(
            "Targets that were found",
            "What each discovery finds and gives to all shards together. Bad: a fall to few that nobody meant. "
            "No data: all targets are configured one by one.",
            "short",
            Query(f"max by (discovery) (llmslo_discovery_targets{{{INSTANCE}}})", "{{discovery}}"),
            width=8,
        ),
        series(
            "Found, and not probed",
            "Over the limit, of a name or address that another target has, or none that can be probed; the prober's log says which. "
            "Bad: any that stay.",
            "short",
            Query(
                f"max by (discovery, reason) (llmslo_discovery_refused_targets{{{INSTANCE}}}) > 0",
                "{{discovery}} {{reason}}",
            ),
            width=8,
            empty="none in this range",
        ),
        series(
            "Discovery was not heard",
            "Times that the source of a discovery was not heard, and whether it is not heard now (1). The targets of before stay. "
            "Bad: any that stay.",
            "short",
            Query(
                f"sum by (discovery) (increase(llmslo_discovery_failures_total{{{INSTANCE}}}[{STEP}])) > 0",
                "{{discovery}} failed",
            ),
            Query(f"max by (discovery) (1 - llmslo_discovery_up{{{INSTANCE}}})", "{{discovery}} not heard"),
            bars=True,
            width=8,
            empty="heard all the time",
        ),
        stat(
            "Shards",
            "Which share of the targets each prober has, from 0. Bad: one that is missing; its targets are not probed.",
            "none",
            now(
                f"max by (instance, shard, shards) (llmslo_shard_info{{{INSTANCE}}})",
                "{{shard}}/{{shards}} at {{instance}}",
            ),
            steps=NEUTRAL,
            width=8,
            text_mode="name",
        ),
        states(
            "Lease",
            "Which replica may sweep and write to Grafana. Bad: none of a shard for longer than a take-over takes. "
            "No data: no lease is configured.",
            words(("waits", GREY), ("holds", GREEN)),
            Query(f"max by (instance) (llmslo_lease_held{{{INSTANCE}}})", "{{instance}}"),
            width=8,
            empty="no lease is configured",
        ),
        series(
            "Take-overs and failures of the lease",
            "How often a lease was taken, and tries to read or renew it that failed. Bad: failures that stay; sweeps and Grafana wait.",
            "short",
            Query(
                f"max by (instance) (changes(llmslo_lease_transitions{{{INSTANCE}}}[{STEP}]))",
                "{{instance}} taken over",
            ),
            Query(
                f"sum by (instance) (increase(llmslo_lease_failures_total{{{INSTANCE}}}[{STEP}])) > 0",
                "{{instance}} failed",
            ),
            bars=True,
            width=8,
            empty="none in this range",
        ),
    ]
