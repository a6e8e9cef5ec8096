"""Types of a diagnosis: features of a window, figures, clues and regimes."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from prober.statistics.quantiles import Quantile

Name = Literal[
    "prober_late",
    "network",
    "cache_pressure",
    "prefix_miss",
    "decode_far_from_bound",
    "memory_bound_decode",
    "prefill_bound",
    "queueing",
    "unknown",
]
Figures = tuple[Quantile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFeatures:
    """Features of a window: that of the breach, or the baseline. None or empty: not measured (never 0).

    From probes:
    ttft_s, itl_s, tpot_s, send_lag_s: quantiles; those without enough samples are not used.
    ttft_mean_s: for comparison with the engine's means; with its standard error.
    step_s: decode step without a concurrent prefill, the lower quartile of ITL.
    ttft_per_prompt_token_s: see `window.per_prompt_token`. prompt_tokens: median.
    ttft_cold_s, ttft_warm_s: medians for prompts of similar length without and with a shared prefix; their difference has the standard
        error saving_error_s.
    connect_s: median. late_ratio: share of probes that the prober sent late.
    held_back_ratio: share of the answers that arrived all at once or several tokens at a time.

    From the engine's page:
    running, waiting: means of the readings. kv_usage_ratio: their 90th percentile.
    waiting_at_most_running_ratio: share of the readings with waiting requests that have the most running ones.
    kv_free_tokens: in the fullest rank, 10th percentile of the readings.
    requests_per_s, prompt_tokens_per_request: of all requests. requests_dispersion: variance over mean of their counts.
    preemptions_per_s, generated_tokens_per_s: from increments of the counters.
    computed_prompt_tokens_per_s: without tokens from the prefix cache.
    prefix_hit_tokens_per_s, prefix_hit_ratio: tokens found in the cache, and their share of those looked up.
    engine_*_s: means of the engine's histograms.

    From GPUs: utilization and clock are means; gpu_throttled_ratio: share of readings with a throttle reason.
    over_bound: speed of `step_s` as a share of what memory bandwidth allows.
    """

    ttft_s: Figures = ()
    itl_s: Figures = ()
    tpot_s: Figures = ()
    send_lag_s: Figures = ()
    ttft_mean_s: float | None = None
    ttft_mean_error_s: float | None = None
    step_s: float | None = None
    ttft_per_prompt_token_s: float | None = None
    prompt_tokens: float | None = None
    ttft_cold_s: float | None = None
    ttft_warm_s: float | None = None
    saving_error_s: float | None = None
    connect_s: float | None = None
    late_ratio: float | None = None
    held_back_ratio: float | None = None
    running: float | None = None
    waiting: float | None = None
    waiting_at_most_running_ratio: float | None = None
    kv_usage_ratio: float | None = None
    kv_free_tokens: float | None = None
    requests_per_s: float | None = None
    requests_dispersion: float | None = None
    prompt_tokens_per_request: float | None = None
    preemptions_per_s: float | None = None
    generated_tokens_per_s: float | None = None
    computed_prompt_tokens_per_s: float | None = None
    prefix_hit_tokens_per_s: float | None = None
    prefix_hit_ratio: float | None = None
    engine_ttft_s: float | None = None
    engine_itl_s: float | None = None
    engine_queue_s: float | None = None
    gpu_utilization_ratio: float | None = None
    gpu_clock_hertz: float | None = None
    gpu_throttled_ratio: float | None = None
    over_bound: float | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Input of a diagnosis.

    now: features during the breach. before: features of the baseline.
    breached: {signal (`ttft`, `tpot`, `itl`, …): threshold in s} of each breached SLO; empty if unknown, or for drift only.
    engine: name of the engine's table of metrics, which selects the names of its settings.
    """

    now: WindowFeatures
    before: WindowFeatures = WindowFeatures()
    breached: Mapping[str, float] = field(default_factory=dict)
    engine: str | None = None


class Value(NamedTuple):
    """Value of a figure. detail: the numbers behind it, for people."""

    value: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number computed from evidence. of: the computation; None if not measured."""

    name: str
    unit: str
    of: Callable[[Evidence], Value | None]


@dataclass(frozen=True, slots=True)
class Clue:
    """A figure within bounds."""

    figure: Figure
    at_least: float = -math.inf
    at_most: float = math.inf

    def holds(self, evidence: Evidence, widening: float = 0.0) -> bool | None:
        """Whether the figure is within the bounds, each moved outwards by a share of itself; None if it was not measured."""
        measured = self.figure.of(evidence)
        if measured is None:
            return None
        low, high = (abs(bound) * widening if math.isfinite(bound) else 0.0 for bound in (self.at_least, self.at_most))
        return self.at_least - low <= measured.value <= self.at_most + high


class Advice(NamedTuple):
    """An action.

    trades: what it costs.
    lever: key of `knobs.KNOBS`.
    knob: the engine's own flag for it, if known.
    """

    do: str
    trades: str
    lever: str | None = None
    knob: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """A cause of slowness.

    needs: one clue of each line must hold; the first line is the symptom.
    supports: clues that may hold.
    contradicts: clues of which none may hold.
    evident: clues, one of each line, that show it beside another cause as well; contradictions do not count then. Empty: never.
    explains: regimes that can be its consequence.
    """

    name: Name
    means: str
    needs: tuple[tuple[Clue, ...], ...]
    supports: tuple[Clue, ...] = ()
    contradicts: tuple[Clue, ...] = ()
    evident: tuple[tuple[Clue, ...], ...] = ()
    explains: frozenset[Name] = frozenset()
    next_measurement: str
    advice: tuple[Advice, ...]
