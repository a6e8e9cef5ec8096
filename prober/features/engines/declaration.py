"""Registers the engines' metrics with the daemon, the rule files and the store."""

from collections.abc import Iterator

from prober.features.engines import series
from prober.probing.feature import Feature, Monitor, Shared, declared


def _monitors(shared: Shared) -> Iterator[Monitor]:
    from prober.features.engines.monitor import EngineMonitor

    yield EngineMonitor(shared.registry, shared.events, shared.saved["engine"])


FEATURE = Feature(
    tuple(dict.fromkeys((*declared(series), *series.SIGNALS.values()))), _monitors, series.alerts, saved="engine"
)
