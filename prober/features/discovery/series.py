"""Series of discovery."""

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
