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
    """A target under the name of its series, and the observers of `features`."""
    return ObservedTarget(name, Target(spec, cast(Clock, clock or StoppedClock())), features)


def reconfigured(target: ObservedTarget, spec: TargetSpec) -> None:
    """Reload the target with another configuration."""
    target.retarget(Target(spec, target.target.clock))
