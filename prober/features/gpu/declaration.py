"""Registers GPU readings with the daemon, the rule files and the store."""

from collections.abc import Iterator

from prober.features.gpu import series
from prober.probing.feature import Feature, Monitor, Shared, declared


def _monitors(shared: Shared) -> Iterator[Monitor]:
    from prober.features.gpu.monitor import GpuMonitor

    yield GpuMonitor(shared.registry, shared.runners)


FEATURE = Feature(declared(series), _monitors, series.alerts)
