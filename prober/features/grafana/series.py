"""Series and panels of the synchronisation with Grafana."""

from prober.exposition.dashboards import queries
from prober.exposition.dashboards.panels import Panel, Query, counts, now, series, stat
from prober.exposition.dashboards.queries import INSTANCE
from prober.exposition.dashboards.style import NEUTRAL
from prober.exposition.families import counter, gauge

GRAFANA_FAILURES = counter(
    "llmslo_grafana_sync_failures_total",
    "Failed synchronisations with Grafana, of dashboards or annotations.",
    "object",
)
GRAFANA_SUCCESS = gauge(
    "llmslo_grafana_sync_last_success_timestamp_seconds",
    "Time of the last complete synchronisation with Grafana.",
    "object",
)
GRAFANA_DASHBOARDS = gauge(
    "llmslo_grafana_dashboards",
    "Dashboards in Grafana by state: current, edited by users, provisioned from files, or failed to write.",
    "state",
)
SIZE = {"width": 8, "height": 6}


def panels() -> list[Panel]:
    """Panels of the state of the dashboards, and of the last and the failed synchronisations."""
    success = f"max by (object) ({GRAFANA_SUCCESS}{{{INSTANCE}}} > 0)"
    return [
        counts(
            "Dashboards in Grafana",
            "Dashboards in Grafana by state. Bad: failed; edited ones are not updated by new releases. "
            "No data: the prober is not configured to write dashboards.",
            now(f"{queries.gauge(GRAFANA_DASHBOARDS, 'state', select=INSTANCE)} > 0", "{{state}}"),
            **SIZE,
        ),
        stat(
            "Last synchronisation with Grafana",
            "Time of the last complete synchronisation of dashboards and annotations. Bad: days ago. "
            "No data: not configured, or never successful.",
            "dateTimeFromNow",
            now(f"1000 * {success}", "{{object}}"),
            steps=NEUTRAL,
            **SIZE,
        ),
        series(
            "Failed synchronisations with Grafana",
            "Failed synchronisations of dashboards and annotations. Bad: any that persist; check address and token.",
            "short",
            Query(queries.increase(GRAFANA_FAILURES, "object", select=INSTANCE), "{{object}}"),
            bars=True,
            **SIZE,
        ),
    ]
