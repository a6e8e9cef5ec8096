"""A feature as a value, and its parts at run time. Each feature declares its own, and `prober/daemon/registry.py` lists them.

This module imports nothing that probes, so that commands that only write rules or count series stay small.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

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
    """A part with state that must survive a restart.

    saving_task: name of the task that saves changes as they come, label of its failures; "": a save per minute is enough
    """

    saving_task = ""

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(key, state) of each part, to save."""
        return iter(())

    async def wait_for_changes(self) -> None:
        """Wait until `changed_states` may return some."""

    def changed_states(self) -> Iterator[tuple[str, bytes]]:
        """States that changed since the last call."""
        return iter(())

    def states_saved(self) -> None:
        """Record that the last returned states were saved, or cannot be saved."""


class Monitor(Stateful):
    """A feature at run time, for all targets. Methods that it does not override do nothing.

    task: name of the task that runs `run`, label of its failures; "" if there is nothing to run
    """

    task = ""

    def observe(self, observed: "ObservedTarget") -> "TargetObserver | None":
        """Create the observer of a target, which has the feature's state for it; None if it is not observed."""

    def configured(self, configuration: "Configuration") -> None:
        """Apply the settings that do not concern a single target."""

    async def run(self) -> None:
        """Work until cancelled."""


class PerTarget(Monitor):
    """A feature whose only state is in its observers. make: creates the observer of a target"""

    def __init__(self, make: "Callable[[ObservedTarget], TargetObserver | None]") -> None:
        self._make = make

    def observe(self, observed: "ObservedTarget") -> "TargetObserver | None":
        return self._make(observed)


class SavedTarget(Protocol):
    """The observer of a target whose state is saved."""

    name: str

    def states(self) -> Iterator[tuple[str, bytes]]:
        """(key, state) of each part, to save."""


Saved = TypeVar("Saved", bound=SavedTarget)


class SavedTargets(Monitor, Generic[Saved]):
    """A feature with state per target, which is saved every minute.

    saved: rows that `states` returned in an earlier process; targets: the observers by name
    """

    def __init__(self, saved: "SavedRows") -> None:
        self.saved = saved
        self.targets: dict[str, Saved] = {}

    def add(self, target: Saved) -> Saved:
        """Save the state of a target from now on. Returns it."""
        self.targets[target.name] = target
        return target

    def forget(self, target: Saved) -> None:
        """Remove a target. Its state is kept in case it returns."""
        del self.targets[target.name]
        self.saved.put(target.states())

    def states(self) -> Iterator[tuple[str, bytes]]:
        for target in list(self.targets.values()):
            yield from target.states()


@dataclass(frozen=True, slots=True)
class Shared:
    """Parts of the prober that features share.

    saved: kind → rows that an earlier process stored
    store: None if state is only in memory
    runners: returns the runners of all targets
    leadership: of several replicas, only the leader sweeps and writes
    open_page, read_facts: read the engine's metrics page; read facts about a target and this machine
    instance: name of this prober
    history_limit: number of successful probes stored per target
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
    """A feature of the prober: the value `FEATURE` of its folder.

    series: its series
    monitors: creates the feature's parts at run time; imports them only when called
    alerts: its alerts
    is_used: returns whether a configuration uses the feature, so that rule files need its alerts
    saved: kind of the rows written by its first monitor; "" without state
    """

    series: tuple[AnySeries, ...]
    monitors: Callable[[Shared], Iterable[Monitor]] = lambda _: ()
    alerts: Callable[[], Iterable[Alert]] = tuple
    is_used: "Callable[[Configuration], bool]" = lambda _: True
    saved: str = ""


def declared(module: ModuleType) -> tuple[AnySeries, ...]:
    """The series that a module declares, in order."""
    return tuple(value for value in vars(module).values() if isinstance(value, Series))
