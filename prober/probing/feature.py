"""A feature as a value, and what it is at run time. Each feature declares its own, and `prober/daemon/registry.py` lists them.

This module loads nothing that probes, so that a command that only writes rules or counts series stays small.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from prober.exposition.alerting import Alert
from prober.exposition.families import AnySeries, Registry, Series

if TYPE_CHECKING:
    from prober.config.configuration import Configuration
    from prober.net.clock import Clock
    from prober.probing.history import EventLog
    from prober.probing.observer import ObservedTarget, OpenPage, TargetObserver
    from prober.probing.replicas import Leadership
    from prober.probing.session import ReadFacts
    from prober.probing.target_runner import TargetRunner
    from prober.storage.saved_rows import SavedRows
    from prober.storage.store import Store


class Stateful:
    """A part whose state must survive a restart.

    saving_task: name of the task that saves changes as they come, as the label of its failures; "" if each minute is enough
    """

    saving_task = ""

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(key, state) of each part, to be saved."""
        return iter(())

    async def wait_for_changes(self) -> None:
        """Wait until `changed_states` may have some."""

    def changed_states(self) -> Iterator[tuple[str, bytes]]:
        """The states that have changed since the last call."""
        return iter(())

    def states_saved(self) -> None:
        """The states that were returned last were saved, or cannot be saved."""


class Monitor(Stateful):
    """A feature at run time, for all targets. Methods that a feature does not override do nothing.

    task: name of the task that `run` is, as the label of its failures; "" if there is nothing to run
    """

    task = ""

    def observe(self, observed: "ObservedTarget") -> "TargetObserver | None":
        """Make the observer of a target, which holds the state of the feature for it; None if it is not observed."""

    def configured(self, configuration: "Configuration") -> None:
        """Apply the settings of the configuration that are not about one target."""

    async def run(self) -> None:
        """Work until cancelled."""


class PerTarget(Monitor):
    """A feature without state of its own beside its observers. make: makes the observer of a target"""

    def __init__(self, make: "Callable[[ObservedTarget], TargetObserver | None]") -> None:
        self._make = make

    def observe(self, observed: "ObservedTarget") -> "TargetObserver | None":
        return self._make(observed)


@dataclass(frozen=True, slots=True)
class Shared:
    """Parts of the prober that features share.

    saved: rows that an earlier process stored, by their kind
    store: None if state is in memory only
    runners: returns the runners of all targets
    leadership: of several replicas only the leader sweeps and writes
    open_page, read_facts: read the engine's metrics page, and facts about a target and this machine
    instance: name of this prober
    history_limit: number of successful probes that are stored for each target
    """

    registry: Registry
    events: "EventLog"
    clock: "Clock"
    configuration: "Configuration"
    saved: "Mapping[str, SavedRows]"
    store: "Store | None"
    runners: "Callable[[], Iterable[TargetRunner]]"
    leadership: "Leadership"
    open_page: "OpenPage"
    read_facts: "ReadFacts"
    instance: str
    history_limit: int


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of the prober, as `FEATURE` of its folder.

    series: its series
    monitors: makes what the feature is at run time; imports that only when called
    alerts: its alerts
    is_used: whether a configuration uses the feature, so that rule files need its alerts
    saved: kind of the rows in the store that its first monitor writes; "" if it has no state
    """

    series: tuple[AnySeries, ...]
    monitors: Callable[[Shared], Iterable[Monitor]] = lambda _: ()
    alerts: Callable[[], Iterable[Alert]] = tuple
    is_used: "Callable[[Configuration], bool]" = lambda _: True
    saved: str = ""


def declared(module: ModuleType) -> tuple[AnySeries, ...]:
    """Returns the series that a module declares, in their order."""
    return tuple(value for value in vars(module).values() if isinstance(value, Series))
