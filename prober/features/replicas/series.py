"""Series and panels of shards and leases."""

from prober.exposition.dashboards import queries
from prober.exposition.dashboards.panels import Panel, Query, now, series, stat, states
from prober.exposition.dashboards.queries import INSTANCE
from prober.exposition.dashboards.style import GREEN, GREY, NEUTRAL, index_mapping
from prober.exposition.families import counter, gauge

LEASE_HELD = gauge(
    "llmslo_lease_held",
    "1 while this replica holds the lease, which allows sweeps and writes to Grafana; absent without a lease.",
)
LEASE_TRANSITIONS = counter(
    "llmslo_lease_transitions_total",
    "Transitions of the lease, as its record counts them; the fencing token. Absent until it is read.",
)
LEASE_FAILURES = counter("llmslo_lease_failures_total", "Failed reads and renewals of the lease.")
SHARD_INFO = gauge(
    "llmslo_shard_info",
    "1; shard of the targets that this replica probes, counted from 0, and number of shards.",
    "shard",
    "shards",
)
SHARDS = gauge("llmslo_shards", "Number of shards, as known to this replica.")


def panels() -> list[Panel]:
    """Panels of the shards, and of the lease's holder, transitions and failures."""
    return [
        stat(
            "Shards",
            "Shard of each prober, counted from 0. Bad: a missing shard; its targets are not probed.",
            "none",
            now(
                queries.gauge(SHARD_INFO, "instance, shard, shards", select=INSTANCE),
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
            index_mapping(("waiting", GREY), ("holder", GREEN)),
            Query(queries.gauge(LEASE_HELD, "instance", select=INSTANCE), "{{instance}}"),
            width=8,
            empty="no lease is configured",
        ),
        series(
            "Lease transitions and failures",
            "Transitions of the lease, and failed reads and renewals. Bad: failures that persist; sweeps and Grafana then wait.",
            "short",
            Query(queries.increase(LEASE_TRANSITIONS, "instance", select=INSTANCE), "{{instance}} transitions"),
            Query(
                f"{queries.increase(LEASE_FAILURES, 'instance', select=INSTANCE)} > 0",
                "{{instance}} failed",
            ),
            bars=True,
            width=8,
            empty="none in this range",
        ),
    ]
