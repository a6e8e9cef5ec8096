"""Panels of the synchronisation with Grafana."""

from prober.exposition.dashboards.panels import Panel, Query, counts, now, series, stat
from prober.exposition.dashboards.queries import INSTANCE, gauge, increase
from prober.exposition.dashboards.style import NEUTRAL
from prober.features.grafana import series as grafana_series

SIZE = {"width": 8, "height": 6}


def panels() -> list[Panel]:
    """State of the dashboards, last and failed synchronisations."""
    success = f"max by (what) ({grafana_series.GRAFANA_SUCCESS}{{{INSTANCE}}} > 0)"
    return [
        counts(
            "Dashboards in Grafana",
            "Dashboards in Grafana by state. Bad: failed; edited ones are not updated by new releases. "
            "No data: the prober is not configured to write dashboards.",
            now(f"{gauge(grafana_series.GRAFANA_DASHBOARDS, 'state', select=INSTANCE)} > 0", "{{state}}"),
            **SIZE,
        ),
        stat(
            "Last synchronisation with Grafana",
            "Time of the last complete synchronisation of dashboards and annotations. Bad: days ago. "
            "No data: not configured, or never successful.",
            "dateTimeFromNow",
            now(f"1000 * {success}", "{{what}}"),
            steps=NEUTRAL,
            **SIZE,
        ),
        series(
            "Failed synchronisations with Grafana",
            "Failed synchronisations of dashboards and annotations. Bad: any that persist; check address and token.",
            "short",
            Query(increase(grafana_series.GRAFANA_FAILURES, "what", select=INSTANCE), "{{what}}"),
            bars=True,
            **SIZE,
        ),
    ]
