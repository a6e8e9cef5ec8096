"""Input of a diagnosis: features of two windows, the breached SLOs, and the comparison of both windows."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

from prober.measure.timeline import format_duration

GROWN = 1.2  # relative to the usual value
CERTAIN = 2.0  # standard errors by which a growth must exceed 0 to be divided into parts
MOST = 0.5  # share of a growth that makes a part its cause

Name = Literal[
    "refusing",
    "failing",
    "loading",
    "draining",
    "sleeping",
    "cache_pressure",
    "prefix_miss",
    "long_prompts",
    "kv_transfer",
    "slow_decode",
    "slow_prefill",
    "stalls",
    "queueing",
    "network",
    "unknown",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowFeatures:
    """Measurements in a window of time, during a breach or in usual times. None or empty if not measured (never 0).

    From probes:
    failures: number of failed probes by outcome and detail, most frequent first. probes: number of all probes.
    ttft_mean_s: mean TTFT of cold and warm prompts, for comparison with the engine's means; with its standard error.
    step_s: decode step without a concurrent prefill: the lower quartile of ITL. slow_step_s: step_s of the slowest fifth of the
    answers.
    still_ratio: share of streaming time in pauses followed by one token: the engine stood still for this stream. longest_still_s: the
    longest of these pauses.
    held_ratio: the same for pauses followed by several tokens at once, which were held on the way.
    ttft_per_prompt_token_s: see `window.prompt_line`; with its standard error.
    long_*: medians of the longest third of prompts (of all if lengths are similar).
    ttft_cold_s, ttft_warm_s: medians for prompts of similar length without and with a shared prefix; saving_error_s: standard error of
    their difference.
    connect_s: median. network_s: median time until the target's host has acknowledged a request.
    *_part_s: means of the parts of the time of probes that their server or a gateway tells; step_part_s: told decode time ÷ tokens
    after the first, median.
    headers_s: mean time from sending to the headers. headers_ratio: median of that time ÷ time to the first token.

    From the engine's metrics page:
    running, waiting: means of the readings. kv_usage_ratio: their 90th percentile. waiting: without deferred ones.
    kv_cache_tokens, kv_capacity_tokens: mean number of tokens in a rank's KV cache, and its capacity.
    requests_per_s, prompt_tokens_per_request: of all requests; the second only if at least half of them are of others.
    preemptions_per_s, generated_tokens_per_s: from increments of the counters.
    computed_prompt_tokens_per_s: without tokens from the prefix cache.
    prefix_hit_tokens_per_s, prefix_hit_ratio: tokens found in the cache, and their share of those looked up.
    engine_*_s: means of the engine's histograms. kv_transfer_s: mean time of KV cache transfers from the engine that prefills.

    From GPUs: clock and used memory are means; gpu_throttled_ratio: share of readings with a throttle reason.
    gpu_processes: mean number of processes that compute on all GPUs.
    over_bound: speed of `step_s` as a share of the memory bandwidth's limit.
    """

    probes: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    ttft_mean_s: float | None = None
    ttft_mean_error_s: float | None = None
    step_s: float | None = None
    slow_step_s: float | None = None
    still_ratio: float | None = None
    held_ratio: float | None = None
    longest_still_s: float | None = None
    ttft_per_prompt_token_s: float | None = None
    ttft_per_prompt_token_error_s: float | None = None
    long_prompt_tokens: float | None = None
    long_ttft_s: float | None = None
    ttft_cold_s: float | None = None
    ttft_warm_s: float | None = None
    saving_error_s: float | None = None
    connect_s: float | None = None
    network_s: float | None = None
    headers_s: float | None = None
    headers_ratio: float | None = None
    gateway_part_s: float | None = None
    queue_part_s: float | None = None
    prefill_part_s: float | None = None
    step_part_s: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage_ratio: float | None = None
    kv_cache_tokens: float | None = None
    kv_capacity_tokens: float | None = None
    requests_per_s: float | None = None
    prompt_tokens_per_request: float | None = None
    preemptions_per_s: float | None = None
    generated_tokens_per_s: float | None = None
    computed_prompt_tokens_per_s: float | None = None
    prefix_hit_tokens_per_s: float | None = None
    prefix_hit_ratio: float | None = None
    engine_ttft_s: float | None = None
    engine_queue_s: float | None = None
    kv_transfer_s: float | None = None
    kv_transfer_failures_per_s: float | None = None
    gpu_clock_hertz: float | None = None
    gpu_throttled_ratio: float | None = None
    gpu_memory_ratio: float | None = None
    gpu_processes: float | None = None
    over_bound: float | None = None


Read = Callable[[WindowFeatures], float | None]


class Finding(NamedTuple):
    """A measured figure. unit: `ratio` for shares, printed as percentages; detail: the numbers behind it, for people"""

    figure: str
    value: float
    unit: str
    detail: str = ""

    @property
    def amount(self) -> str:
        """Value with its unit, such as `7.2`, `98.8%` or `1.6 ×`."""
        value, unit = (self.value * 100, "%") if self.unit == "ratio" else (self.value, f" {self.unit}".rstrip())
        return (f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}") + unit

    def text(self) -> str:
        """The finding as text, such as `decode step: 1.6 × (14.9 ms, usually 9.3 ms)`."""
        return f"{self.figure}: {self.amount}{f' ({self.detail})' if self.detail else ''}"


class Symptoms:
    """Input of a diagnosis, and its figures: growth over the usual values, and the parts of the TTFT's growth.

    Args:
        now: features during the breach; before: usual features
        breached: {signal (`ttft`, `tpot`, `itl`, …): threshold in s} of breached SLOs; empty if unknown, or with only drift
        engine: name of the engine's metrics table, which selects the names of settings

    added_s: growth of the probes' mean TTFT in seconds; None if it is too uncertain to be divided. Probes arrive at random,
        so their mean wait is that of all requests (Wolff, Poisson arrivals see time averages, 1982)
    long_added_s: growth of the median TTFT of long prompts; None without growth
    is_ttft_slow: the TTFT is bad, and it grew or its usual value is unknown
    queue_share: share of the growth in the engine's queue, by what it tells of the probes, or its page of all requests: queue time, or
    else waiting requests
    outside_share: share of the growth outside the engine's own mean TTFT
    work_growth: growth of answer tokens/s or computed prompt tokens/s, whichever is larger
    step_growth: growth of the duration of a plain decode step
    load_growth: largest growth of work, steps, prompt lengths and request rate; 1 if none grew
    """

    def __init__(
        self,
        now: WindowFeatures,
        before: WindowFeatures = WindowFeatures(),
        breached: Mapping[str, float] = MappingProxyType({}),
        engine: str | None = None,
    ) -> None:
        self.now, self.before, self.breached, self.engine = now, before, breached, engine
        signals = breached.keys()
        self.is_about_decode = not signals or bool(signals & {"tpot", "itl", "e2e"})
        self.has_usual = before.ttft_mean_s is not None
        self.added_s: float | None = None
        if now.ttft_mean_s is not None and before.ttft_mean_s is not None:
            error_s = math.hypot(now.ttft_mean_error_s or 0.0, before.ttft_mean_error_s or 0.0)
            if now.ttft_mean_s > max(GROWN * before.ttft_mean_s, before.ttft_mean_s + CERTAIN * error_s):
                self.added_s = now.ttft_mean_s - before.ttft_mean_s
        is_longer = is_at_least(self.growth(lambda w: w.long_ttft_s), GROWN)
        self.long_added_s = (now.long_ttft_s or 0.0) - (before.long_ttft_s or 0.0) if is_longer else None
        has_grown = self.added_s is not None or self.long_added_s is not None
        self.is_about_ttft = not signals or bool(signals & {"ttft", "ttft_answer", "e2e"})
        self.is_ttft_slow = self.is_about_ttft and has_grown if self.has_usual else "ttft" in breached
        self.queue_share = self.told_share(lambda w: w.queue_part_s)
        for wait in (lambda w: w.engine_queue_s, _waiting_s):
            if self.queue_share is None:
                self.queue_share = self.share(wait, self.added_s)
        self.outside_share = self._outside_share()
        work: Sequence[Read] = (lambda w: w.generated_tokens_per_s, lambda w: w.computed_prompt_tokens_per_s)
        self.work_growth = max((part for read in work if (part := self.growth(read)) is not None), default=None)
        limits_s = [limit_s for signal, limit_s in breached.items() if signal in ("tpot", "itl")]
        self.step_growth = self.growth(lambda w: w.step_s)
        if before.step_s is None and now.step_s is not None and limits_s:
            self.step_growth = GROWN * now.step_s / min(limits_s)
        loads: Sequence[Read] = (lambda w: w.prompt_tokens_per_request, lambda w: w.requests_per_s)
        growths = [self.step_growth, self.work_growth, *map(self.growth, loads)]
        self.load_growth = max([1.0, *(growth for growth in growths if growth is not None)])

    def growth(self, read: Read) -> float | None:
        """Ratio of the present to the usual value. read: returns the value from a window's features"""
        now, before = read(self.now), read(self.before)
        return None if now is None or not before else now / before

    def share(self, read: Read, of_s: float | None) -> float | None:
        """A part's share in the growth `of_s`. Without a usual value: MOST × the part ÷ the SLO's threshold."""
        now, before, limit_s = read(self.now), read(self.before), self.breached.get("ttft")
        if now is not None and not self.has_usual:
            return MOST * now / limit_s if limit_s else None
        return (now - before) / of_s if now is not None and before is not None and of_s is not None else None

    def told_share(self, read: Read) -> float | None:
        """Share of a part, as the server tells it of the probes, in the growth; without a usual value, in the mean TTFT itself."""
        now, mean_s = read(self.now), self.now.ttft_mean_s
        if self.has_usual:
            return self.share(read, self.added_s)
        return now / mean_s if now is not None and mean_s else None

    def _outside_share(self) -> float | None:
        inside = self.share(lambda w: w.engine_ttft_s, self.added_s)
        if inside is None or self.before.ttft_mean_s is None or not self.before.engine_ttft_s:
            return None
        # Probes slower than the mean request, because of longer prompts, may have grown in the engine by the same factor.
        return 1 - inside * (max(1.0, self.before.ttft_mean_s / self.before.engine_ttft_s) if inside > 0 else 1.0)

    def measured(self, name: str, read: Read, unit: str = "") -> Finding | None:
        """Finding with the present and the usual value; None if not measured."""
        now, before = read(self.now), read(self.before)
        usual = "" if before is None else f"usually {Finding('', before, unit).amount}"
        return None if now is None else Finding(name, now, unit, usual)

    def grown(self, name: str, read: Read) -> Finding | None:
        """Finding with a duration, relative to the usual one, or in milliseconds if that is unknown."""
        now, before = read(self.now), read(self.before)
        if now is None:
            return None
        if not before:
            return Finding(name, now * 1e3, "ms")
        return Finding(name, now / before, "×", f"{format_duration(now)}, usually {format_duration(before)}")

    def shared(self, name: str, share: float | None, of_s: float | None, *, is_told: bool = False) -> Finding | None:
        """Finding with a part's share in the growth of the TTFT. is_told: the share is that of `told_share`"""
        if share is None:
            return None
        if is_told and not self.has_usual:
            return Finding(f"{name}, share of the TTFT", share, "ratio", f"of {format_duration(self.now.ttft_mean_s)}")
        if of_s is None:
            return Finding(f"{name}, relative to the SLO's threshold", share / MOST, "ratio")
        return Finding(f"{name}, share of the growth of the TTFT", share, "ratio", f"of {format_duration(of_s)}")


def is_at_least(value: float | None, least: float) -> bool:
    """True if a value was measured and is at least `least`."""
    return value is not None and value >= least


def _waiting_s(window: WindowFeatures) -> float | None:
    """Mean wait of a request by Little's law: waiting requests ÷ arrivals per second."""
    if window.waiting == 0:
        return 0.0
    return window.waiting / window.requests_per_s if window.waiting is not None and window.requests_per_s else None
