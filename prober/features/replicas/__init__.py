"""Shards and leases: several probers that share targets and do some work only once."""

from prober.features.replicas import series
from prober.probing.feature import Feature, declared

FEATURE = Feature(declared(series))
