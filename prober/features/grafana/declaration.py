"""Registers synchronisation with Grafana with the daemon."""

from prober.features.grafana import series
from prober.probing.feature import Feature, declared

FEATURE = Feature(declared(series))
