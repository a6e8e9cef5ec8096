"""Registers capacity and sweeps with the daemon, the rule files and the store."""

from collections.abc import Iterator

from prober.features.capacity import series
from prober.probing.feature import Feature, Monitor, Shared, declared


def _monitors(shared: Shared) -> Iterator[Monitor]:
    from prober.features.capacity.headroom import Headroom
    from prober.features.capacity.monitor import Sweeps

    headroom = Headroom(shared.registry, shared.saved["demand"])
    yield headroom
    yield Sweeps(shared, headroom)


FEATURE = Feature(
    declared(series),
    _monitors,
    series.alerts,
    lambda configuration: any(kind.sweep for kind in configuration.kinds),
    saved="demand",
)
