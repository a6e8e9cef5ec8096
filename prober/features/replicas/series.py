"""Series of shards and leases."""

from prober.exposition.families import counter, gauge

LEASE_HELD = gauge(
    "llmslo_lease_held",
    "1 while this replica holds the lease, which allows sweeps and writes to Grafana; absent without a lease.",
)
LEASE_TRANSITIONS = gauge("llmslo_lease_transitions", "Transitions of the lease, as last read; the fencing token.")
LEASE_FAILURES = counter("llmslo_lease_failures_total", "Failed reads and renewals of the lease.")
SHARD_INFO = gauge(
    "llmslo_shard_info",
    "1; shard of the targets that this replica probes, counted from 0, and number of shards.",
    "shard",
    "shards",
)
SHARDS = gauge("llmslo_shards", "Number of shards, as known to this replica.")
