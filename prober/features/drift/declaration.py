"""Registers drift detection with the daemon, the rule files and the store."""

from collections.abc import Iterator

from prober.features.drift import series
from prober.probing.feature import Feature, Monitor, Shared, declared


def _monitors(shared: Shared) -> Iterator[Monitor]:
    from prober.features.drift.monitor import DriftMonitor

    yield DriftMonitor(
        shared.registry,
        shared.events,
        shared.configuration.drift,
        shared.saved["drift"],
        has_store=shared.store is not None,
    )


FEATURE = Feature(declared(series), _monitors, series.alerts, saved="drift")
