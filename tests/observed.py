"""A target that features observe, without probing it."""

from typing import cast

from prober.config.specs import TargetSpec
from prober.net.clock import Clock
from prober.probing.observer import Feature, ObservedTarget
from prober.probing.target import Target


class StoppedClock:
    """A monotonic clock that a test sets."""

    def __init__(self) -> None:
        self.ns = 0

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
