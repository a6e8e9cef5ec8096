"""Series of shards and leases."""

from prober.exposition.families import Series, counter, gauge

LEASE_HELD = gauge("llmslo_lease_held", "1 while this replica may sweep and write to Grafana; absent without a lease.")
LEASE_TRANSITIONS = gauge(
    "llmslo_lease_transitions", "How often the lease was taken, as last seen: its fencing number."
)
LEASE_FAILURES = counter("llmslo_lease_failures_total", "Tries to read or renew the lease that were not answered well.")
SHARD_INFO = gauge(
    "llmslo_shard_info", "1; which shard of the targets this replica probes, from 0, of how many.", "shard", "shards"
)
SHARDS = gauge("llmslo_shards", "How many shards the targets are divided among, as far as this replica knows.")

ALL: tuple[Series, ...] = tuple(value for value in globals().copy().values() if isinstance(value, Series))
