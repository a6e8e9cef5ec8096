"""Series of discovery."""

from prober.exposition.families import Series, counter, gauge

DISCOVERY_TARGETS = gauge(
    "llmslo_discovery_targets", "Targets that were found and are probed, of all shards.", "discovery"
)
DISCOVERY_REFUSED = gauge(
    "llmslo_discovery_refused_targets",
    "Found and not probed: over the limit, of a name or URL that another one has, or no target.",
    "discovery",
    "reason",
)
DISCOVERY_UP = gauge(
    "llmslo_discovery_up", "1 while its source is heard; else the targets of before stay.", "discovery"
)
DISCOVERY_FAILURES = counter("llmslo_discovery_failures_total", "Times that its source was not heard.", "discovery")
DISCOVERY_REFUSALS = ("duplicate", "limit", "unfit")

ALL: tuple[Series, ...] = tuple(value for value in globals().copy().values() if isinstance(value, Series))
