"""Registers discovery with the daemon and the rule files."""

from prober.features.discovery import series
from prober.probing.feature import Feature, declared

FEATURE = Feature(declared(series), alerts=series.alerts, is_used=lambda configuration: bool(configuration.discovery))
