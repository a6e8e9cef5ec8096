"""Panels of discovery."""

from prober.exposition.dashboards.panels import Panel, Query, series
from prober.exposition.dashboards.queries import INSTANCE, gauge, increase
from prober.features.discovery import series as discovery_series


def panels() -> list[Panel]:
    """Targets found, targets not probed, failed reads."""
    failures = increase(discovery_series.DISCOVERY_FAILURES, "discovery", select=INSTANCE)
    refused = gauge(discovery_series.DISCOVERY_REFUSED, "discovery, reason", select=INSTANCE)
    return [
        series(
            "Discovered targets",
            "Targets that each discovery provides, over all shards. Bad: an unexpected drop. "
            "No data: no discovery is configured.",
            "short",
            Query(gauge(discovery_series.DISCOVERY_TARGETS, "discovery", select=INSTANCE), "{{discovery}}"),
            width=8,
        ),
        series(
            "Discovered targets that are not probed",
            "Over the limit, duplicate name or address, or unfit as a target; the prober's log names them. "
            "Bad: any that persist.",
            "short",
            Query(f"{refused} > 0", "{{discovery}} {{reason}}"),
            width=8,
            empty="none in this range",
        ),
        series(
            "Discovery failures",
            "Failed reads of each source, and whether it is failing now (1). The last known targets are kept. "
            "Bad: any that persist.",
            "short",
            Query(f"{failures} > 0", "{{discovery}} failed"),
            Query(f"max by (discovery) (1 - {discovery_series.DISCOVERY_UP}{{{INSTANCE}}})", "{{discovery}} down"),
            bars=True,
            width=8,
            empty="no failures in this range",
        ),
    ]
