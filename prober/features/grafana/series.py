"""Series of the synchronisation with Grafana."""

from prober.exposition.families import counter, gauge

GRAFANA_FAILURES = counter(
    "llmslo_grafana_sync_failures_total", "Failed synchronisations with Grafana, of dashboards or annotations.", "what"
)
GRAFANA_SUCCESS = gauge(
    "llmslo_grafana_sync_last_success_timestamp_seconds",
    "Time of the last complete synchronisation with Grafana.",
    "what",
)
GRAFANA_DASHBOARDS = gauge(
    "llmslo_grafana_dashboards",
    "Dashboards in Grafana by state: current, edited by users, provisioned from files, or failed to write.",
    "state",
)
GRAFANA_DASHBOARD_STATES = ("current", "edited", "provisioned", "failed")
