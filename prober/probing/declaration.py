"""Registers probing with the daemon, the rule files and the store."""

from collections.abc import Iterator
from functools import partial

from prober.probing import series
from prober.probing.feature import Feature, Monitor, PerTarget, Shared, declared


def _monitors(shared: Shared) -> Iterator[Monitor]:
    from prober.probing import recorder
    from prober.probing.history import ProbeHistory

    registry, events = shared.registry, shared.events
    for make in (
        partial(recorder.TargetProbes, registry),
        partial(recorder.TargetFailures, registry),
        partial(recorder.TargetRefusals, registry),
        partial(recorder.TargetTrust, registry),
        partial(recorder.TargetBuffering, registry, events),
        partial(recorder.TargetCaching, events),
    ):
        yield PerTarget(make)
    yield ProbeHistory(shared.history_limit)


FEATURE = Feature(declared(series), _monitors)
