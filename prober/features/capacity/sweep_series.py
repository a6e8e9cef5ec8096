"""Series of a target's sweeps."""

from typing import get_args

from prober.exposition.families import Registry
from prober.features.capacity import series
from prober.features.capacity.actions import Reason, RefusalReason
from prober.features.capacity.sweep_runner import SweepRun
from prober.results.result import Result
from prober.statistics.quantiles import percentile_name

STOP_REASONS: tuple[str, ...] = tuple(reason for part in get_args(Reason) for reason in get_args(part))


class SweepSeries:
    """Series of one target's sweeps. After `close` nothing is written, which would recreate a removed target's series."""

    def __init__(self, registry: Registry, name: str) -> None:
        self._registry, self._name = registry, name

    def declare(self, period_s: float | None) -> None:
        """Create the counters at 0, so that `increase()` sees the first event. period_s: longest time between scheduled sweeps"""
        registry, name = self._registry, self._name
        for reason in series.SWEEP_REFUSALS:
            registry.value(series.SWEEPS_REFUSED, name, reason)
        for verdict in series.SWEEP_VERDICTS:
            registry.value(series.SWEEPS, name, verdict)
        for reason in STOP_REASONS:
            registry.value(series.SWEEP_STOPS, name, reason)
        registry.value(series.SWEEP_RATE, name)
        registry.show(series.SWEEP_PERIOD, period_s, name)

    def close(self) -> None:
        """Write all later values to a registry that is not exposed."""
        self._registry = Registry(family.series for family in self._registry.values())

    def refused(self, reason: RefusalReason) -> None:
        """Count a sweep that was not started, by reason."""
        self._registry.value(series.SWEEPS_REFUSED, self._name, reason).inc()

    def failed(self, unix_s: float) -> None:
        """Count a sweep without a result: a fault of the prober, or an unidentified target."""
        self._registry.value(series.SWEEPS, self._name, "failed").inc()
        self.last_end(unix_s, "no_result")

    def rate(self, per_s: float) -> None:
        """Set the running sweep's requests per second."""
        self._registry.show(series.SWEEP_RATE, per_s, self._name)

    def ended(self, run: SweepRun, result: Result) -> None:
        """Show the result and the end of a sweep, and count its requests and tokens."""
        registry, name, finished = self._registry, self._name, run.finished
        registry.value(series.SWEEPS, name, finished.verdict).inc()
        registry.value(series.SWEEP_STOPS, name, finished.reason).inc()
        registry.value(series.SWEEP_REQUESTS, name).inc(len(run.probes))
        registry.value(series.SWEEP_TOKENS, name).inc(run.tokens)
        self.last_end(result.ended_unix_s, finished.reason)

    def last_end(self, unix_s: float, reason: str) -> None:
        """Show when the last sweep ended (Unix seconds) and why."""
        self._registry.keep(series.SWEEP_END, (), self._name)
        self._registry.show(series.SWEEP_END, unix_s, self._name, reason)

    def figure_time(self, unix_s: float | None) -> None:
        """Show when the target's last sweep with a figure ended; None if none has one at this URL."""
        self._registry.show(series.SWEEP_SUCCESS, unix_s, self._name)

    def stages(self, result: Result | None) -> None:
        """Replace the shown load curve by that of this result; None removes it."""
        registry, name = self._registry, self._name
        registry.keep(series.SWEEP_STAGE_RATE, (), name)
        registry.keep(series.SWEEP_STAGE_TOKENS, (), name)
        registry.keep(series.SWEEP_STAGE_LATENCY, (), name)
        for index, stage in enumerate(result.stages if result is not None else ()):
            label = f"{index:02d}"
            total_per_s = (stage.rate_per_s or 0.0) + (stage.demand_per_s or 0.0)
            registry.show(series.SWEEP_STAGE_RATE, total_per_s, name, label)
            registry.show(series.SWEEP_STAGE_TOKENS, stage.at_rate.output_tokens_per_s, name, label)
            for signal, quantiles in stage.latencies.items():
                for quantile in quantiles:
                    if quantile.has_enough_samples or quantile.q == 0.5:
                        labels = (name, label, signal, percentile_name(quantile.q))
                        registry.show(series.SWEEP_STAGE_LATENCY, quantile.estimate, *labels)
