"""Input of a diagnosis: features of two windows, and the breached SLOs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Name = Literal[
    "prober_late",
    "refusing",
    "failing",
    "loading",
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
    """Measurements of a window of time: during a breach, or in usual times. None or empty if not measured (never 0).

    From probes:
    failures: number of failed probes by outcome and detail, most frequent first. probes: number of all probes.
    ttft_mean_s: mean TTFT of cold and warm prompts, for comparison with the engine's means; with its standard error.
    step_s: decode step without a concurrent prefill: the lower quartile of ITL. slow_step_s: step_s of the slowest fifth of the
        answers.
    still_ratio: share of streaming time in pauses after which one token came, as the engine stood still for this stream.
    held_ratio: the same for pauses after which several tokens came together, as they were held on the way.
    still_together_ratio: of the pauses in still_ratio during which another stream was open, the share in which that stream paused too.
        longest_still_s: the longest of them.
    ttft_per_prompt_token_s: see `window.prompt_line`; with its standard error.
    long_*: medians of the longest third of the prompts (of all if their lengths are similar), and the quartile range of their TTFT.
    ttft_cold_s, ttft_warm_s: medians for prompts of similar length without and with a shared prefix; their difference has the standard
        error saving_error_s.
    connect_s: median. headers_s: mean time from sending to the headers. headers_ratio: median of that time ÷ time to the first token.
    late_ratio: share of probes that the prober sent late.

    From the engine's metrics page:
    running, waiting: means of the readings. kv_usage_ratio: their 90th percentile.
    kv_cache_tokens: mean number of tokens in the KV cache of a rank.
    waiting_at_most_running_ratio: of the readings with waiting requests, the share with the maximum number of running requests.
    requests_per_s, prompt_tokens_per_request: of all requests.
    preemptions_per_s, generated_tokens_per_s: from increments of the counters.
    computed_prompt_tokens_per_s: without tokens from the prefix cache.
    prefix_hit_tokens_per_s, prefix_hit_ratio: tokens found in the cache, and their share of those looked up.
    engine_*_s: means of the engine's histograms. kv_transfer_s: mean time of KV cache transfers from the engine that prefills.

    From GPUs: clock and memory in use are means; gpu_throttled_ratio: share of readings with a throttle reason.
    gpu_processes: mean number of processes that compute on all of them.
    over_bound: speed of `step_s` as a share of what memory bandwidth allows.
    """

    probes: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)
    ttft_mean_s: float | None = None
    ttft_mean_error_s: float | None = None
    step_s: float | None = None
    slow_step_s: float | None = None
    still_ratio: float | None = None
    held_ratio: float | None = None
    still_together_ratio: float | None = None
    longest_still_s: float | None = None
    ttft_per_prompt_token_s: float | None = None
    ttft_per_prompt_token_error_s: float | None = None
    long_prompt_tokens: float | None = None
    long_ttft_s: float | None = None
    long_ttft_spread_s: float | None = None
    ttft_cold_s: float | None = None
    ttft_warm_s: float | None = None
    saving_error_s: float | None = None
    connect_s: float | None = None
    headers_s: float | None = None
    headers_ratio: float | None = None
    late_ratio: float | None = None
    running: float | None = None
    waiting: float | None = None
    waiting_at_most_running_ratio: float | None = None
    kv_usage_ratio: float | None = None
    kv_cache_tokens: float | None = None
    requests_per_s: float | None = None
    prompt_tokens_per_request: float | None = None
    preemptions_per_s: float | None = None
    generated_tokens_per_s: float | None = None
    computed_prompt_tokens_per_s: float | None = None
    prefix_hit_tokens_per_s: float | None = None
    prefix_hit_ratio: float | None = None
    engine_ttft_s: float | None = None
    engine_itl_s: float | None = None
    engine_queue_s: float | None = None
    kv_transfer_s: float | None = None
    kv_transfer_failures_per_s: float | None = None
    gpu_clock_hertz: float | None = None
    gpu_throttled_ratio: float | None = None
    gpu_memory_ratio: float | None = None
    gpu_processes: float | None = None
    over_bound: float | None = None


@dataclass(frozen=True, slots=True)
class Symptoms:
    """Input of a diagnosis.

    now: features during the breach. before: usual features.
    breached: {signal (`ttft`, `tpot`, `itl`, …): threshold in s} of each breached SLO; empty if unknown, or for drift only.
    engine: name of the engine's table of metrics, which selects the names of its settings.
    """

    now: WindowFeatures
    before: WindowFeatures = WindowFeatures()
    breached: Mapping[str, float] = field(default_factory=dict)
    engine: str | None = None
