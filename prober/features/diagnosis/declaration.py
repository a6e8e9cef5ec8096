"""Registers the diagnosis with the daemon, the rule files and the store."""

from collections.abc import Iterator

from prober.features.diagnosis import series
from prober.probing.feature import Feature, Monitor, Shared, declared


def _monitors(shared: Shared) -> Iterator[Monitor]:
    from prober.features.diagnosis.monitor import DiagnosisMonitor

    yield DiagnosisMonitor(shared.registry, shared.events, shared.saved["diagnosis"])


FEATURE = Feature(declared(series), _monitors, saved="diagnosis")
