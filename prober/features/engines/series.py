"""Series and alerts of the engines' metrics."""

from collections.abc import Callable

from prober.exposition.alerting import Alert, Link, of_present
from prober.exposition.families import Series, counter, gauge, histogram

SIGNALS: dict[str, Series[str]] = {}  # by field of EngineSignals
_TEXTS: dict[Callable[[str, str, str], Series[str]], dict[str, str]] = {  # by field
    gauge: {
        "context_tokens": "Maximum tokens of prompt and answer together.",
        "requests_running": "Requests in the running batch.",
        "requests_waiting": "Requests waiting in the queue.",
        "kv_cache_usage_ratio_max": "Share of the KV cache in use, of the fullest rank, and of the fullest pool of a hybrid model.",
        "kv_cache_capacity_tokens": "Size of the KV cache in tokens, summed over ranks.",
        "speculation_acceptance_ratio": "Share of draft tokens accepted lately, as the engine computes it; 0 also without it.",
        "speculation_length_tokens": "Tokens per draft lately, with the one that the model adds, as the engine computes it.",
        "requests_deferred": "Requests waiting for something other than capacity, such as an adapter or a KV transfer.",
        "sleeping": "1 while the engine sleeps: it has released its GPU memory on request, and answers nobody.",
        "pool_saturation_ratio": "Load of a router's pool by its own measure; 1 at its limit.",
    },
    counter: {
        "preemptions_total": "Requests preempted for lack of KV cache.",
        "prefix_cache_queries_tokens_total": "Prompt tokens looked up in the prefix cache.",
        "prefix_cache_hits_tokens_total": "Prompt tokens found in the prefix cache.",
        "prompt_tokens_total": "Prompt tokens of all requests.",
        "generation_tokens_total": "Tokens generated.",
        "requests_finished_total": "Requests finished, for any reason.",
        "speculation_drafts_total": "Drafts of speculative decoding that the model verified.",
        "speculation_draft_tokens_total": "Tokens drafted by speculative decoding.",
        "speculation_accepted_tokens_total": "Tokens drafted by speculative decoding that the model accepted.",
        "kv_transfer_failures_total": "KV transfers from prefilling to decoding engine that failed, or whose KV cache expired.",
        "requests_judged_total": "Requests served, failed or rejected; without aborted and wrong ones, where the page tells them.",
        "requests_failed_total": "Requests that the server failed: status 5xx, errors and timeouts of the engine.",
        "requests_rejected_total": "Requests turned away because of the server's load: status 429, or a queue limit.",
        "http_errors_total": "Answers with status 5xx by the engine's HTTP server; failed and rejected ones can be among them.",
        "grammar_timeouts_total": "Requests for structured output whose grammar was not compiled in time.",
        "ttft_slo_violations_total": "Requests that missed the TTFT that they asked the router for.",
        "tpot_slo_violations_total": "Requests that missed the TPOT that they asked the router for.",
        "kv_offload_load_seconds_total": "Time of loading KV cache from offload storage (host memory, disk) to the GPU.",
        "kv_offload_load_bytes_total": "KV cache loaded from offload storage to the GPU, in bytes.",
        "kv_offload_failures_total": "Loads of offloaded KV cache from a slower tier that failed.",
    },
    histogram: {
        "ttft_seconds": "TTFT as measured by the engine, in its own buckets.",
        "itl_seconds": "ITL as measured by the engine, in its own buckets.",
        "queue_seconds": "Queue time as measured by the engine, in its own buckets.",
        "kv_transfer_seconds": "Time of a KV cache from prefilling to decoding engine, as either measures it, in its own buckets.",
        "prefill_seconds": "Time from a request's first step to its first token, as measured by the engine, in its own buckets.",
        "decode_seconds": "Time from a request's first token to its last, as measured by the engine, in its own buckets.",
        "predicted_ttft_seconds": "TTFT that the router predicted for its requests, in its own buckets.",
        "predicted_tpot_seconds": "TPOT that the router predicted for its requests, in its own buckets.",
        "outcome_ttft_seconds": "TTFT of the requests with a predicted one, as the router measured it, in its own buckets.",
        "outcome_tpot_seconds": "TPOT of the requests with a predicted one, as the router measured it, in its own buckets.",
        "tpot_seconds": "TPOT as measured by the engine, in its own buckets.",
    },
}
_NAMES = {  # where it is not that of the field
    "kv_cache_usage_ratio_max": "kv_cache_usage_ratio",
    "prefix_cache_queries_tokens_total": "prefix_cache_queries_total",
    "prefix_cache_hits_tokens_total": "prefix_cache_hits_total",
    "requests_finished_total": "requests_total",
}
for _kind, _texts in _TEXTS.items():
    for _field, _text in _texts.items():
        SIGNALS[_field] = _kind(f"llmslo_engine_{_NAMES.get(_field, _field)}", _text, "target")
ENGINE_UP = gauge(
    "llmslo_engine_up",
    "1 while the engine's metrics page can be read, else 0; absent for an engine whose page is not configured and was never read.",
    "target",
)
ENGINE_INFO = gauge(
    "llmslo_engine_info",
    "1; identity of the engine, as its page reports it, and the model that its answers name.",
    "target",
    "engine",
    "version",
    "model",
)
SERVICE_TIER_INFO = gauge(
    "llmslo_service_tier_info",
    "1 for the service tier that the answers name, for each if several answer in turn; `other` for an unknown one.",
    "target",
    "service_tier",
)
ENGINE_FINISHED = counter(
    "llmslo_engine_requests_finished_total",
    "Requests finished, by the reason that the engine counts: stop, length, abort, error, repetition.",
    "target",
    "finished_reason",
)
ENGINE_CHANGES = counter(
    "llmslo_engine_changes_total",
    "Changes of the engine: restarts, and changes of engine, version, model, flags or size (KV cache, slots, context or ranks, by more "
    "than 5%), or of the GPU driver.",
    "target",
    "change",
)
ENGINE_LAST_CHANGE = gauge(
    "llmslo_engine_last_change_timestamp_seconds",
    "When the engine last changed, since the prober's start.",
    "target",
    "change",
)
ENGINE_CHANGE_KINDS = ("engine", "version", "model", "size", "flags", "driver", "restart")


def alerts() -> tuple[Alert, ...]:
    """Alerts on a full KV cache (inhibited while an SLO's budget burns) and on a lost metrics page."""
    usage = "llmslo_engine_kv_cache_usage_ratio"
    full = (
        f"max by (target) (quantile_over_time(0.9, {usage}[10m])) > 0.9\nand\n"
        "max by (target) (increase(llmslo_engine_preemptions_total[10m])) > 0"
    )
    return (
        Alert(
            "LLMKVCachePressure",
            "warning",
            of_present(full, usage),
            "5m",
            "The KV cache of {{ $labels.target }} is nearly full and requests are preempted",
            "{{ $value | humanizePercentage }} were in use for a minute of the last 10. A preempted request repeats its prefill.",
            link=Link("engine", ("target",)),
        ),
        Alert(
            "LLMEnginePageUnreadable",
            "warning",
            # A target that does not answer has its own alert.
            "max by (target) (llmslo_engine_up) == 0\nand on (target)\n"
            'max by (target) (llmslo_target_state{state="ready"}) == 1\n',
            "15m",
            "The engine's metrics page of {{ $labels.target }} cannot be read",
            "The target answers. Without its page there is no queue, KV cache, batch and load for diagnosis, drift and headroom.",
            link=Link("engine", ("target",)),
        ),
    )
