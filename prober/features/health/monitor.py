"""Passes probe results and states to the health of a target, and exports it as a series."""

from collections.abc import Iterable
from typing import Any

from prober.exposition.families import Registry
from prober.features.health import series
from prober.features.health.health import Health, HealthState, HealthVerdict
from prober.measure.result import ProbeResult
from prober.measure.target_state import TargetState, WorkloadState
from prober.probing.observer import ObservedTarget, TargetObserver

MAX_AGE_GAPS = 10  # no gap of a Poisson schedule is as long, with probability 1 - e^-10


class TargetHealth(TargetObserver):
    """The health of one target."""

    def __init__(self, registry: Registry, observed: ObservedTarget) -> None:
        self._registry, self._observed = registry, observed
        self._state = HealthState(observed.spec.health, MAX_AGE_GAPS * self.gap_s + observed.spec.timeouts.total)
        self._show()

    @property
    def gap_s(self) -> float:
        """Mean time between two probes of the target, in seconds."""
        return 1 / sum(probe.rate for probe in self._observed.spec.probes)

    @property
    def verdict(self) -> HealthVerdict:
        """The present verdict."""
        target = self._observed.target
        is_paused = target.paused_unix_s is not None
        return self._state.at(target.clock.now_ns(), target.state, target.reason, is_paused=is_paused)

    def summary(self) -> dict[str, Any]:
        return {"health": self.verdict}

    def probe_ended(self, result: ProbeResult) -> None:
        self._state.probe_ended(result, self._observed.target.clock.now_ns())
        self._show()

    def state_seen(
        self, state: TargetState, starting_until_unix_s: float | None, workloads: Iterable[WorkloadState]
    ) -> None:
        self._state.state_seen(state, self._observed.target.reason, self._observed.target.clock.now_ns())
        self._show()

    def paused(self) -> None:
        self._show()

    def _show(self) -> None:
        value = {Health.HEALTHY: 1.0, Health.UNHEALTHY: 0.0, Health.UNKNOWN: None}[self.verdict.state]
        self._registry.show(series.HEALTHY, value, self._observed.name)
