"""Registers shards and leases with the daemon."""

from prober.features.replicas import series
from prober.probing.feature import Feature, declared

FEATURE = Feature(declared(series))
