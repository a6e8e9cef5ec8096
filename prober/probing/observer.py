"""Observers of a target. Each feature has one observer per target, with the feature's state for it."""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partialmethod
from typing import Any, Protocol, TypeVar

from prober.config.serving import MetricsSpec
from prober.config.target import TargetSpec
from prober.measure.engine_signals import EngineChange, PageReading
from prober.measure.gpu_reading import GpuReading
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetState, WorkloadState
from prober.net.clock import Clock
from prober.probing.target import Target

Observer = TypeVar("Observer", bound="TargetObserver")
log = logging.getLogger(__name__)


class NamedSpec(Protocol):
    """A target's configuration, with its name in series."""

    @property
    def name(self) -> str:
        """Value of the label `target` in its series."""

    @property
    def spec(self) -> TargetSpec:
        """The configuration of the target."""


class TargetObserver:
    """Receives the events of one target. Methods that a feature does not override do nothing.

    A target whose configuration changes is removed and returns as a new one with new observers. State that must survive is in
    the rows that the feature saves for a restart of the prober.
    """

    def summary(self) -> dict[str, Any]:
        """Values for pages and API, by field of `prober.web.targets.TargetAnswer`."""
        return {}

    def probe_ended(self, result: ProbeResult) -> None:
        """A scheduled probe has ended, or was due but not sent."""

    def started(self) -> None:
        """Probing has begun."""

    def stopped(self) -> None:
        """No more probes are started; running ones still end."""

    def state_seen(
        self, state: TargetState, starting_until_unix_s: float | None, workloads: Iterable[WorkloadState]
    ) -> None:
        """The state of the target, called even if it has not changed.

        starting_until_unix_s: when a target that has never answered starts to count as failing; None for others
        workloads: states of its workloads
        """

    def page_read(self, reading: PageReading | None) -> None:
        """The engine's metrics page was read. reading: None if the page can no longer be read"""

    def gpus_read(self, devices: Sequence[GpuReading], driver: str) -> None:
        """The GPUs that serve the target were read. driver: version of their driver, "" if unknown"""

    def engine_changed(self, change: EngineChange) -> None:
        """The engine was restarted, or the engine or its hardware changed."""

    def drifted(self, workload: str, signal: str, *, active: bool) -> None:
        """A latency has drifted from its baseline, or if not `active` has returned to it."""

    def budget_spent(self) -> None:
        """Requests other than scheduled probes are spending the target's budgets."""

    def paused(self) -> None:
        """A person paused the target, or its server is about to end."""

    def removed(self) -> None:
        """The target was removed, or its configuration changed."""


class PageListener(Protocol):
    """Receives the readings of an engine's metrics page."""

    def page_read(self, reading: PageReading | None) -> None:
        """The metrics page was read. reading: None if the page can no longer be read"""

    def engine_changed(self, change: EngineChange) -> None:
        """The engine was restarted or replaced."""


class PageSource(Protocol):
    """Reads the metrics page of one engine."""

    async def run(self) -> None:
        """Read repeatedly until cancelled, or until the engine certainly has no metrics page."""

    async def read(self) -> bool:
        """Read once and call the listener. Returns False if the engine certainly has no metrics page."""


OpenPage = Callable[[Target, MetricsSpec, Clock, PageListener, Callable[[], str]], PageSource]


# Creates a feature's observer of a target; None if the feature ignores the target.
MakeObserver = Callable[["ObservedTarget"], TargetObserver | None]


class ObservedTarget(TargetObserver):
    """A target with all its observers, in the order of the features.

    Each method of an observer calls the same method of all observers. An exception of one observer is logged and
    affects neither the others nor the caller.
    """

    def __init__(self, target: Target, features: Iterable[MakeObserver]) -> None:
        self.name, self.target = target.spec.key, target
        self._observers: list[TargetObserver] = []
        for feature in features:
            try:
                observer = feature(self)
            except Exception:
                log.exception("target=%s: %s failed; please report this", self.name, feature)
                continue
            if observer is not None:
                self._observers.append(observer)

    @property
    def spec(self) -> TargetSpec:
        """The configuration of the target."""
        return self.target.spec

    def find(self, kind: type[Observer]) -> Observer | None:
        """The observer of this kind; None if there is none."""
        return next((observer for observer in self._observers if isinstance(observer, kind)), None)

    def summary(self) -> dict[str, Any]:
        return {name: value for observer in self._observers for name, value in observer.summary().items()}

    def removed(self) -> None:
        self._notify("removed")
        self._observers = []

    def _notify(self, method: str, *values: object, **named: object) -> None:
        for observer in self._observers:
            try:
                getattr(observer, method)(*values, **named)
            except Exception:
                log.exception("target=%s: %s failed; please report this", self.name, type(observer).__name__)


for _name in vars(TargetObserver):
    if _name not in vars(ObservedTarget) and not _name.startswith("_"):
        setattr(ObservedTarget, _name, partialmethod(ObservedTarget._notify, _name))
