"""Series, alerts and panels of discovery."""

from prober.exposition.alerting import Alert
from prober.exposition.dashboards import queries
from prober.exposition.dashboards.panels import Panel, Query, series
from prober.exposition.dashboards.queries import INSTANCE
from prober.exposition.families import counter, gauge

DISCOVERY_TARGETS = gauge(
    "llmslo_discovery_targets", "Targets that were found and are probed, over all shards.", "discovery"
)
DISCOVERY_REFUSED = gauge(
    "llmslo_discovery_refused_targets",
    "Targets that were found but are not probed: over the limit, duplicate name or URL, or unfit as a target.",
    "discovery",
    "reason",
)
DISCOVERY_UP = gauge(
    "llmslo_discovery_up", "1 if the source answers completely; otherwise its last known targets are kept.", "discovery"
)
DISCOVERY_FAILURES = counter("llmslo_discovery_failures_total", "Failed reads of the source.", "discovery")
DISCOVERY_REFUSALS = ("duplicate", "limit", "unfit")


def alerts() -> tuple[Alert, ...]:
    """Alerts on unreadable sources and on discovered targets that are not probed."""
    return (
        Alert(
            "LLMDiscoveryDown",
            "warning",
            "count by (discovery) (llmslo_discovery_up == 0)\n",
            "10m",
            "The source of discovery {{ $labels.discovery }} does not answer",
            "{{ $value }} probers cannot read its source, or not all of it. Known targets are still probed; new engines may be "
            "missed. The log of each prober has the error.",
        ),
        Alert(
            "LLMDiscoveryTargetsRefused",
            "warning",
            'max by (discovery, reason) (llmslo_discovery_refused_targets{reason!="duplicate"}) > 0\n',
            "15m",
            "The discovery {{ $labels.discovery }} finds targets that are not probed",
            "{{ $value }} targets were found and are not probed, reason {{ $labels.reason }} (limit: more than the entry's `limit`; "
            "unfit: invalid address or name, or a host that is not allowed). The log of the prober names them.",
        ),
    )


def panels() -> list[Panel]:
    """Panels of discovered targets, of those that are not probed, and of failed reads."""
    failures = queries.increase(DISCOVERY_FAILURES, "discovery", select=INSTANCE)
    refused = queries.gauge(DISCOVERY_REFUSED, "discovery, reason", select=INSTANCE)
    return [
        series(
            "Discovered targets",
            "Targets that each discovery provides, over all shards. Bad: an unexpected drop. "
            "No data: no discovery is configured.",
            "short",
            Query(queries.gauge(DISCOVERY_TARGETS, "discovery", select=INSTANCE), "{{discovery}}"),
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
            Query(f"max by (discovery) (1 - {DISCOVERY_UP}{{{INSTANCE}}})", "{{discovery}} down"),
            bars=True,
            width=8,
            empty="no failures in this range",
        ),
    ]
