"""Panels of shards and leases."""

from prober.exposition.dashboards.panels import Panel, Query, now, series, stat, states
from prober.exposition.dashboards.queries import INSTANCE, STEP, gauge, increase
from prober.exposition.dashboards.style import GREEN, GREY, NEUTRAL, index_mapping
from prober.features.replicas import series as replicas_series


def panels() -> list[Panel]:
    """Shards, holder of the lease, transitions and failures of the lease."""
    transitions = f"max by (instance) (changes({replicas_series.LEASE_TRANSITIONS}{{{INSTANCE}}}[{STEP}]))"
    return [
        stat(
            "Shards",
            "Shard of each prober, counted from 0. Bad: a missing shard; its targets are not probed.",
            "none",
            now(
                gauge(replicas_series.SHARD_INFO, "instance, shard, shards", select=INSTANCE),
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
            Query(gauge(replicas_series.LEASE_HELD, "instance", select=INSTANCE), "{{instance}}"),
            width=8,
            empty="no lease is configured",
        ),
        series(
            "Lease transitions and failures",
            "Transitions of the lease, and failed reads and renewals. Bad: failures that persist; sweeps and Grafana then wait.",
            "short",
            Query(transitions, "{{instance}} transitions"),
            Query(
                f"{increase(replicas_series.LEASE_FAILURES, 'instance', select=INSTANCE)} > 0", "{{instance}} failed"
            ),
            bars=True,
            width=8,
            empty="none in this range",
        ),
    ]
