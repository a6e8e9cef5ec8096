"""Registers the health of targets with the daemon."""

from collections.abc import Iterator
from functools import partial

from prober.features.health import series
from prober.probing.feature import Feature, Monitor, PerTarget, Shared, declared


def _monitors(shared: Shared) -> Iterator[Monitor]:
    from prober.features.health.monitor import TargetHealth

    yield PerTarget(partial(TargetHealth, shared.registry))


FEATURE = Feature(declared(series), _monitors)
