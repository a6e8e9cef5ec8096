"""A target that features observe, without probing it."""

from typing import cast

from prober.config.target import TargetSpec
from prober.net.clock import Clock
from prober.probing.observer import Feature, ObservedTarget
from prober.probing.target import Target

UNIX_S = 1e9


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
    spec: TargetSpec, *features: Feature, name: str = "t", clock: StoppedClock | None = None
) -> ObservedTarget:
    """A target under the name of its series, and the observers of `features`."""
    return ObservedTarget(name, Target(spec, cast(Clock, clock or StoppedClock())), features)


def reconfigured(target: ObservedTarget, spec: TargetSpec) -> None:
    """Reload the target with another configuration."""
    target.retarget(Target(spec, target.target.clock))
