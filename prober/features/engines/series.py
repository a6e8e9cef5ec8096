"""Series and alerts of the engines' metrics."""

from collections.abc import Callable

from prober.exposition.alerting import Alert, Link, of_present
from prober.exposition.families import Series, counter, gauge, histogram

SIGNALS: dict[str, Series[str]] = {}  # by field of EngineSignals


def _signal(field: str, kind: Callable[[str, str, str], Series[str]], name: str, text: str) -> Series[str]:
    """Declare the series that exports a field of EngineSignals."""
    declared = SIGNALS[field] = kind(f"llmslo_engine_{name}", text, "target")
    return declared


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
ENGINE_CONTEXT = _signal("context_tokens", gauge, "context_tokens", "Maximum tokens of prompt and answer together.")
ENGINE_RUNNING = _signal("requests_running", gauge, "requests_running", "Requests in the running batch.")
ENGINE_WAITING = _signal("requests_waiting", gauge, "requests_waiting", "Requests waiting in the queue.")
ENGINE_KV_USAGE = _signal(
    "kv_cache_usage_ratio_max",
    gauge,
    "kv_cache_usage_ratio",
    "Share of the KV cache in use, of the rank with the highest share, and of the fullest pool of a hybrid model.",
)
ENGINE_KV_CAPACITY = _signal(
    "kv_cache_capacity_tokens", gauge, "kv_cache_capacity_tokens", "Size of the KV cache in tokens, summed over ranks."
)
ENGINE_PREEMPTIONS = _signal(
    "preemptions_total", counter, "preemptions_total", "Requests preempted for lack of KV cache."
)
ENGINE_PREFIX_QUERIES = _signal(
    "prefix_cache_queries_tokens_total",
    counter,
    "prefix_cache_queries_total",
    "Prompt tokens looked up in the prefix cache.",
)
ENGINE_PREFIX_HITS = _signal(
    "prefix_cache_hits_tokens_total", counter, "prefix_cache_hits_total", "Prompt tokens found in the prefix cache."
)
ENGINE_PROMPT_TOKENS = _signal("prompt_tokens_total", counter, "prompt_tokens_total", "Prompt tokens of all requests.")
ENGINE_GENERATION_TOKENS = _signal("generation_tokens_total", counter, "generation_tokens_total", "Tokens generated.")
ENGINE_REQUESTS = _signal("requests_finished_total", counter, "requests_total", "Requests finished, for any reason.")
ENGINE_FINISHED = counter(
    "llmslo_engine_requests_finished_total",
    "Requests finished, by the reason that the engine counts: stop, length, abort, error, repetition.",
    "target",
    "reason",
)
ENGINE_DRAFTS = _signal(
    "speculation_drafts_total",
    counter,
    "speculation_drafts_total",
    "Drafts of speculative decoding that the model verified.",
)
ENGINE_DRAFT_TOKENS = _signal(
    "speculation_draft_tokens_total",
    counter,
    "speculation_draft_tokens_total",
    "Tokens drafted by speculative decoding.",
)
ENGINE_ACCEPTED_TOKENS = _signal(
    "speculation_accepted_tokens_total",
    counter,
    "speculation_accepted_tokens_total",
    "Tokens drafted by speculative decoding that the model accepted.",
)
ENGINE_ACCEPTANCE = _signal(
    "speculation_acceptance_ratio",
    gauge,
    "speculation_acceptance_ratio",
    "Share of the draft tokens that were accepted in the latest batches, as the engine computes it; 0 also without speculation.",
)
ENGINE_SPECULATION_LENGTH = _signal(
    "speculation_length_tokens",
    gauge,
    "speculation_length_tokens",
    "Tokens per draft in the latest batches, with the one that the model adds, as the engine computes it; 0 without speculation.",
)
ENGINE_TTFT = _signal("ttft_seconds", histogram, "ttft_seconds", "TTFT as measured by the engine, in its own buckets.")
ENGINE_ITL = _signal("itl_seconds", histogram, "itl_seconds", "ITL as measured by the engine, in its own buckets.")
ENGINE_QUEUE = _signal(
    "queue_seconds", histogram, "queue_seconds", "Queue time as measured by the engine, in its own buckets."
)
ENGINE_KV_TRANSFER = _signal(
    "kv_transfer_seconds",
    histogram,
    "kv_transfer_seconds",
    "Time of a KV cache from the engine that prefills to the one that decodes, as either of them measures it, in its own buckets.",
)
ENGINE_KV_TRANSFER_FAILURES = _signal(
    "kv_transfer_failures_total",
    counter,
    "kv_transfer_failures_total",
    "KV transfers between the engine that prefills and the one that decodes that failed, or whose KV cache expired before.",
)
_OWN_BUCKETS = "as measured by the engine, in its own buckets."
# Exported under the names of their fields.
_MORE: dict[Callable[[str, str, str], Series[str]], dict[str, str]] = {
    gauge: {
        "requests_deferred": "Requests waiting for something other than capacity, such as an adapter or a KV transfer.",
        "sleeping": "1 while the engine sleeps: it has released its GPU memory on request, and answers nobody.",
        "pool_saturation_ratio": "Load of a router's pool by its own measure; 1 at its limit.",
    },
    counter: {
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
        "prefill_seconds": f"Time from a request's first step to its first token, without the queue, {_OWN_BUCKETS}",
        "decode_seconds": f"Time from a request's first token to its last, {_OWN_BUCKETS}",
        "tpot_seconds": f"TPOT {_OWN_BUCKETS}",
        "predicted_ttft_seconds": "TTFT that the router predicted for its requests, in its own buckets.",
        "predicted_tpot_seconds": "TPOT that the router predicted for its requests, in its own buckets.",
    },
}
for _kind, _texts in _MORE.items():
    for _name, _text in _texts.items():
        _signal(_name, _kind, _name, _text)
ENGINE_CHANGES = counter(
    "llmslo_engine_changes_total",
    "Changes of the engine: restarts, and changes of engine, version, model, flags or size (KV cache, slots, context or ranks, by more "
    "than 5%), or of the GPU driver.",
    "target",
    "what",
)
ENGINE_LAST_CHANGE = gauge(
    "llmslo_engine_last_change_timestamp_seconds",
    "When the engine last changed, since the prober's start.",
    "target",
    "what",
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
