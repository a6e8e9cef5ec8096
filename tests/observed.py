"""A target that features observe, without probing it; and what features share."""

from collections import defaultdict
from typing import Any, cast

from prober.config.configuration import Configuration
from prober.config.target import TargetSpec
from prober.exposition.families import Registry
from prober.features.engines.page_reader import PageReader
from prober.net.clock import Clock
from prober.probing.feature import Shared
from prober.probing.history import EventLog
from prober.probing.observer import MakeObserver, ObservedTarget
from prober.probing.replicas import Leadership
from prober.probing.target import Target
from prober.storage.saved_rows import SavedRows

UNIX_S = 1e9


def shared(registry: Registry, clock: Clock, **changes: Any) -> Shared:
    """What the daemon's features share, with what is in memory only."""
    values: dict[str, Any] = {
        "events": EventLog(),
        "configuration": Configuration(),
        "saved": defaultdict(SavedRows),
        "store": None,
        "runners": tuple,
        "leadership": Leadership(),
        "open_page": PageReader,
        "read_facts": None,
        "instance": "test",
        "history_limit": 100,
    }
    return Shared(registry=registry, clock=clock, **(values | changes))


class StoppedClock:
    """A clock that a test sets. ns: since its start at `UNIX_S`."""

    def __init__(self) -> None:
        self.ns = 0

    def unix_s(self) -> float:
        """Seconds of the wall clock."""
        return UNIX_S + self.ns / 1e9

    def now_ns(self) -> int:
        """Nanoseconds."""
        return self.ns


def observed(
    spec: TargetSpec, *features: MakeObserver, name: str = "t", clock: StoppedClock | None = None
) -> ObservedTarget:
    """A target of this name, and the observers of `features`."""
    named = spec.model_copy(update={"name": name})
    return Observed(Target(named, cast(Clock, clock or StoppedClock())), features)


class Observed(ObservedTarget):
    """Remembers the features that observe it."""

    def __init__(self, target: Target, features: tuple[MakeObserver, ...]) -> None:
        self.features = features
        super().__init__(target, features)


def reconfigured(target: ObservedTarget, spec: TargetSpec, *registries: Registry) -> ObservedTarget:
    """The target after a reload with another configuration, as the fleet makes it. registries: with its series"""
    assert isinstance(target, Observed)
    target.removed()
    for registry in registries:
        registry.remove(target.name)
    return Observed(Target(spec.model_copy(update={"name": target.name}), target.target.clock), target.features)
