"""What the daemon shows of a target's sweeps, as series."""

from typing import get_args

from prober.exposition.families import Registry
from prober.features.capacity import series as capacity_series
from prober.features.capacity.actions import Finished, Reason
from prober.results.result import Result


class SweepSeries:
    """Of all targets; what is said of a target that is not declared any more would make its series anew."""

    def __init__(self, families: Registry) -> None:
        self._families = families

    def declare(self, name: str, period_s: float | None) -> None:
        """Counters at 0, so that `increase()` sees the first event. period_s: longest time between two scheduled sweeps."""
        for reason in capacity_series.SWEEP_REFUSALS:
            self._families.value(capacity_series.SWEEPS_REFUSED, name, reason)
        for verdict in capacity_series.SWEEP_VERDICTS:
            self._families.value(capacity_series.SWEEPS, name, verdict)
        for reason in (reason for part in get_args(Reason) for reason in get_args(part)):
            self._families.value(capacity_series.SWEEP_STOPS, name, reason)
        self._families.value(capacity_series.SWEEP_RATE, name)
        self._families.show(capacity_series.SWEEP_PERIOD, period_s, name)

    def refused(self, name: str, reason: str) -> None:
        """A sweep was not begun, for one of capacity_series.SWEEP_REFUSALS."""
        self._families.value(capacity_series.SWEEPS_REFUSED, name, reason).inc()

    def failed(self, name: str) -> None:
        """A sweep came to nothing by a fault of the prober's, or of a target that does not say who it is."""
        self._families.value(capacity_series.SWEEPS, name, "failed").inc()

    def rate(self, name: str, per_s: float) -> None:
        """What a sweep adds now."""
        self._families.value(capacity_series.SWEEP_RATE, name).value = per_s

    def ended(self, name: str, finished: Finished, result: Result) -> None:
        """A sweep is over."""
        families = self._families
        families.value(capacity_series.SWEEPS, name, finished.verdict).inc()
        families.value(capacity_series.SWEEP_STOPS, name, finished.reason).inc()
        families.value(capacity_series.SWEEP_REQUESTS, name).inc(len(result.requests))
        used = sum((each.prompt_tokens or 0) + (each.output_tokens or 0) for each in result.requests)
        families.value(capacity_series.SWEEP_TOKENS, name).inc(used)
        self._stages(name, result)

    def found(self, name: str, unix_s: float) -> None:
        """A sweep found a capacity then."""
        self._families.value(capacity_series.SWEEP_SUCCESS, name).value = unix_s

    def _stages(self, name: str, result: Result) -> None:
        self._families.keep(capacity_series.SWEEP_STAGE_RATE, (), name)
        self._families.keep(capacity_series.SWEEP_STAGE_TOKENS, (), name)
        self._families.keep(capacity_series.SWEEP_STAGE_LATENCY, (), name)
        for index, stage in enumerate(result.stages):
            label = f"{index:02d}"
            total = (stage.rate_per_s or 0.0) + (stage.demand_per_s or 0.0)
            self._families.value(capacity_series.SWEEP_STAGE_RATE, name, label).value = total
            if stage.output_tokens_per_s is not None:
                self._families.value(capacity_series.SWEEP_STAGE_TOKENS, name, label).value = stage.output_tokens_per_s
            for signal, found in stage.latencies.items():
                for quantile in found:
                    if quantile.has_enough_samples or quantile.q == 0.5:
                        labels = (name, label, signal, f"{quantile.q:g}")
                        self._families.value(capacity_series.SWEEP_STAGE_LATENCY, *labels).value = quantile.estimate
