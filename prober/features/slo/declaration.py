"""Registers SLOs with the daemon, the rule files and the store."""

from collections.abc import Iterator

from prober.features.slo import series
from prober.probing.feature import Feature, Monitor, Shared, declared
from prober.probing.series import TRUSTED


def _monitors(shared: Shared) -> Iterator[Monitor]:
    from prober.features.slo.monitor import SloMonitor
    from prober.storage.saved_rows import moment

    registry, clock = shared.registry, shared.clock
    yield SloMonitor(
        registry,
        lambda: moment(clock.now_ns(), clock.unix_s()),
        shared.saved["slo"],
        shared.events,
        lambda target: registry.value(TRUSTED, target).value > 0,
    )


FEATURE = Feature(declared(series), _monitors, saved="slo")
