"""Series of the synchronisation with Grafana."""

from prober.exposition.families import Series, counter, gauge

GRAFANA_FAILURES = counter(
    "llmslo_grafana_sync_failures_total", "Visits to Grafana that failed: for dashboards, for annotations.", "what"
)
GRAFANA_SUCCESS = gauge(
    "llmslo_grafana_sync_last_success_timestamp_seconds", "When Grafana last had all that it was given.", "what"
)
GRAFANA_DASHBOARDS = gauge(
    "llmslo_grafana_dashboards",
    "Dashboards that Grafana has as they should be, and those left alone: edited by people, read from a file, failed.",
    "state",
)
GRAFANA_DASHBOARD_STATES = ("current", "edited", "provisioned", "failed")

ALL: tuple[Series, ...] = tuple(value for value in globals().copy().values() if isinstance(value, Series))
