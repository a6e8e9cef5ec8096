"""The words of a diagnosis: what was seen, figures of it, clues that figures give, regimes that clues name."""

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
class Seen:
    """What was seen over a window: the breach's, or the baseline's. None and empty: not measured, never 0.

    From the probes: ttft_s, itl_s, tpot_s, send_lag_s: quantiles; one without enough samples is not used. ttft_mean_s, for
    comparison with the engine's mean; step_s: a decode step with no prefill beside it, the lower quartile of the ITLs;
    ttft_per_prompt_token_s: see `window.per_prompt_token`; prompt_tokens: the median; ttft_cold_s, ttft_warm_s: medians of
    prompts of like lengths without and with a shared prefix; connect_s: median; late_ratio: of the probes, those that the
    prober sent too late
    From the engine's page: running, waiting: means of the readings; kv_usage_ratio: their 90th percentile; the rest of the
    window's increments: preemptions, tokens of answers, prompt tokens computed (not those from the cache), prompt tokens
    found, and their share of those looked up; engine_*_s: means by its own histograms
    From the GPUs: utilization and clock: means; gpu_throttled_ratio: of the readings, those with a reason to throttle
    From both and the model: over_bound: speed of `step_s` over what memory bandwidth allows, see `roofline`
    """

    ttft_s: Figures = ()
    itl_s: Figures = ()
    tpot_s: Figures = ()
    send_lag_s: Figures = ()
    ttft_mean_s: float | None = None
    step_s: float | None = None
    ttft_per_prompt_token_s: float | None = None
    prompt_tokens: float | None = None
    ttft_cold_s: float | None = None
    ttft_warm_s: float | None = None
    connect_s: float | None = None
    late_ratio: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage_ratio: float | None = None
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
    """now: over the breach; before: over the baseline; engine: by the name of its table of metrics, for the names of its knobs

    breached: of each SLO that is, its signal (`ttft`, `tpot`, `itl`, …) and threshold in s; empty: not told, or a drift only
    """

    now: Seen
    before: Seen = Seen()
    breached: Mapping[str, float] = field(default_factory=dict)
    engine: str | None = None


class Value(NamedTuple):
    """A figure's value, and what it was made of, for the reader."""

    value: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """Something that evidence tells; None where it does not."""

    name: str
    unit: str
    of: Callable[[Evidence], Value | None]


@dataclass(frozen=True, slots=True)
class Clue:
    """A figure and the bounds that make it tell."""

    figure: Figure
    at_least: float = -math.inf
    at_most: float = math.inf

    def holds(self, evidence: Evidence) -> bool | None:
        """None: not measured."""
        found = self.figure.of(evidence)
        return None if found is None else self.at_least <= found.value <= self.at_most


class Advice(NamedTuple):
    """Something to do, the engine's own knob for it where it is known, and what it costs."""

    do: str
    trades: str
    lever: str | None = None
    knob: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """needs: of each line one clue must hold, the first line is the symptom; supports: may; contradicts: none may

    explains: regimes that it can bring about
    """

    name: Name
    means: str
    needs: tuple[tuple[Clue, ...], ...]
    supports: tuple[Clue, ...] = ()
    contradicts: tuple[Clue, ...] = ()
    explains: frozenset[Name] = frozenset()
    next_measurement: str
    advice: tuple[Advice, ...]
