"""Registers drift of latencies and of the engine's efficiency with the daemon, the rule files and the store."""

from collections.abc import Iterator

from prober.features.drift import efficiency_series, series
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


def _efficiency(shared: Shared) -> Iterator[Monitor]:
    from prober.features.drift.efficiency_monitor import EfficiencyMonitor

    yield EfficiencyMonitor(shared.registry, shared.events, shared.configuration.drift, shared.saved["efficiency"])


EFFICIENCY = Feature(declared(efficiency_series), _efficiency, efficiency_series.alerts, saved="efficiency")
