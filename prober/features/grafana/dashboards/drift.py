"""Drift dashboard: drift of latencies, and the health of the prober itself."""

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
        "Discovery, shards and lease": _sources(),
    }
    text = "Latencies against their own baselines, and the health of the prober itself."
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
        "Phase of each baseline (learning: not judged yet; provisional: judged with a wide margin; settled), the evidence of drift "
        "(100% raises an alarm), and for an active drift its cause, start, and median relative to the baseline with a 95% interval. "
        "Bad: red evidence. A dash: no active drift.",
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
        "Evidence that a latency is above its own baseline, on a log scale. Bad: at 1, dashed, an alarm is raised; "
        "so is a line that climbs steadily. No line while the baseline is learning.",
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
        "Active drift of each latency by cause: regression is slower at the same load, load is a busier engine, "
        "unknown: the load is not known. Bad: regression. Grey: learning, not judged yet.",
        words(("learning", GREY), ("none", GREEN), ("unknown", YELLOW), ("load", ORANGE), ("regression", RED)),
        Query(
            f"max by ({SIGNAL}) ({codes} or {judged()} or 0 * llmslo_drift_evidence_ratio{{{PROBES}}})", WHICH
        ),
        width=12,
    )  # fmt: skip


def _shift() -> Panel:
    return series(
        "Size of the shift",
        "Median and p99 since the change relative to the baseline at the same load, with 95% intervals; only with enough samples. "
        "Bad: a lower bound well above 1. No data: no drift, or too few samples.",
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
        empty="no drift with enough samples",
    )


def _events() -> Panel:
    happened = increase("llmslo_drift_events_total", "signal, event", window="$__range")
    return stat(
        "Baseline events",
        "Events in this range: baselines learnt, alarms, recoveries, improvements and accepted drifts. "
        "Bad: improved and learnt repeatedly; the baseline then never settles.",
        "none",
        now(f"{happened} > 0", "{{signal}} {{event}}"),
        steps=NEUTRAL,
        decimals=0,
        text_mode="value_and_name",
        width=12,
        height=8,
        empty="no events in this range",
    )


def _prober() -> list[Panel]:
    return [
        stat(
            "Trusted",
            "Whether each prober sent its probes on time in the last 5 minutes. Bad: no; usually it lacks CPU time.",
            "none",
            now(f"min by (instance) (llmslo_trusted{{{INSTANCE}}})", "{{instance}}"),
            mappings=YES,
            steps=((None, RED), (1, GREEN)),
            fill="background",
            width=6,
        ),
        stat(
            "Configuration loaded",
            "Whether the last reload of the configuration succeeded. Bad: no; the previous configuration stays in use.",
            "none",
            now(f"min by (instance) (llmslo_config_last_reload_successful{{{INSTANCE}}})", "{{instance}}"),
            mappings=YES,
            steps=((None, RED), (1, GREEN)),
            fill="background",
            width=6,
        ),
        stat(
            "Latest configuration",
            "Time of the last successful reload. Bad: before your last change of the file.",
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
            "Version of each prober. Bad: several versions for longer than a rollout.",
            "none",
            now(f"max by (instance, version) (llmslo_build_info{{{INSTANCE}}})", "{{version}} at {{instance}}"),
            steps=NEUTRAL,
            width=6,
            text_mode="name",
        ),
        series(
            "Send lag, p99",
            "Delay of the prober in sending. Bad: above max_send_lag (10 ms unless configured), dashed; "
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
            "Delay of the prober's event loop. Bad: some milliseconds and rising; the prober lacks CPU time.",
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
    """Panels of a prober that writes dashboards and annotations to Grafana."""
    return [
        stat(
            "Dashboards in Grafana",
            "Dashboards in Grafana by state. Bad: failed; edited ones are not updated by new releases. "
            "No data: the prober is not configured to write dashboards.",
            "none",
            now(f"max by (state) (llmslo_grafana_dashboards{{{INSTANCE}}}) > 0", "{{state}}"),
            steps=NEUTRAL,
            decimals=0,
            text_mode="value_and_name",
            width=8,
            height=6,
        ),
        stat(
            "Last synchronisation with Grafana",
            "Time of the last complete synchronisation of dashboards and annotations. Bad: days ago. "
            "No data: not configured, or never successful.",
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
            "Failed synchronisations with Grafana",
            "Failed synchronisations of dashboards and annotations. Bad: any that persist; check address and token.",
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
            "Due times of the schedule, without neutral probes. Bad: below the configured rate.",
            "cps",
            Query(
                f"sum by (target, workload) (rate(llmslo_probes_total{{{PROBES}}}[{STEP}]))", "{{target}} {{workload}}"
            ),
            width=8,
        ),
        series(
            "Excluded and shed probes",
            "Probes excluded from the SLIs by reason, probes shed at max_in_flight (counted as failures), and cold probes that the "
            "engine answered from its cache. Bad: invalid above 1%; shed: the target answers too slowly; rejected.",
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
            "Remaining share of the 24-hour budgets of tokens and dollars. Bad: near 0; at 0 probes are not sent.",
            "percentunit",
            Query(f"min by (target, budget) (llmslo_budget_remaining_ratio{{{TARGET}}})", "{{target}} {{budget}}"),
            high=1,
            width=8,
        ),
        series(
            "Rate limits left",
            "Remainder of the server's rate limits, from its headers. Bad: near 0. "
            "No data: the server sends no such headers.",
            "short",
            Query(f"min by (target, kind) (llmslo_rate_limit_remaining{{{TARGET}}})", "{{target}} {{kind}}"),
            width=12,
        ),
        series(
            "Failed writes to storage",
            "Failed writes to --storage.path. Bad: any; what is not written does not survive a restart.",
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
    """Panels of discovery, shards and leases."""
    return [
        series(
            "Discovered targets",
            "Targets that each discovery provides, over all shards. Bad: an unexpected drop. "
            "No data: no discovery is configured.",
            "short",
            Query(f"max by (discovery) (llmslo_discovery_targets{{{INSTANCE}}})", "{{discovery}}"),
            width=8,
        ),
        series(
            "Discovered targets that are not probed",
            "Over the limit, duplicate name or address, or unfit as a target; the prober's log names them. "
            "Bad: any that persist.",
            "short",
            Query(
                f"max by (discovery, reason) (llmslo_discovery_refused_targets{{{INSTANCE}}}) > 0",
                "{{discovery}} {{reason}}",
            ),
            width=8,
            empty="none in this range",
        ),
        series(
            "Discovery failures",
            "Failed reads of each source, and whether it is failing now (1). The last known targets are kept. "
            "Bad: any that persist.",
            "short",
            Query(
                f"sum by (discovery) (increase(llmslo_discovery_failures_total{{{INSTANCE}}}[{STEP}])) > 0",
                "{{discovery}} failed",
            ),
            Query(f"max by (discovery) (1 - llmslo_discovery_up{{{INSTANCE}}})", "{{discovery}} down"),
            bars=True,
            width=8,
            empty="no failures in this range",
        ),
        stat(
            "Shards",
            "Shard of each prober, counted from 0. Bad: a missing shard; its targets are not probed.",
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
            "The replica that holds the lease may sweep and write to Grafana. Bad: no holder for longer than the lease duration. "
            "No data: no lease is configured.",
            words(("waiting", GREY), ("holder", GREEN)),
            Query(f"max by (instance) (llmslo_lease_held{{{INSTANCE}}})", "{{instance}}"),
            width=8,
            empty="no lease is configured",
        ),
        series(
            "Lease transitions and failures",
            "Transitions of the lease, and failed reads and renewals. Bad: failures that persist; sweeps and Grafana then wait.",
            "short",
            Query(
                f"max by (instance) (changes(llmslo_lease_transitions{{{INSTANCE}}}[{STEP}]))",
                "{{instance}} transitions",
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
