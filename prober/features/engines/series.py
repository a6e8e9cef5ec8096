"""Series of the engines' own pages."""

from prober.exposition.families import AnySeries, Series, counter, gauge, histogram

ENGINE_UP = gauge("llmslo_engine_up", "1 while the engine's metrics page can be read.", "target")
ENGINE_INFO = gauge(
    "llmslo_engine_info",
    "1; identity of the engine, as its page reports it, and the model that its answers name.",
    "target",
    "engine",
    "version",
    "model",
)
ENGINE_CONTEXT = gauge("llmslo_engine_context_tokens", "Maximum tokens of prompt and answer together.", "target")
ENGINE_RUNNING = gauge("llmslo_engine_requests_running", "Requests in the running batch.", "target")
ENGINE_WAITING = gauge("llmslo_engine_requests_waiting", "Requests waiting in the queue.", "target")
ENGINE_KV_USAGE = gauge(
    "llmslo_engine_kv_cache_usage_ratio", "Share of the KV cache in use, of the rank with the highest share.", "target"
)
ENGINE_KV_CAPACITY = gauge(
    "llmslo_engine_kv_cache_capacity_tokens", "Size of the KV cache in tokens, summed over ranks.", "target"
)
ENGINE_PREEMPTIONS = counter("llmslo_engine_preemptions_total", "Requests preempted for lack of KV cache.", "target")
ENGINE_PREFIX_QUERIES = counter(
    "llmslo_engine_prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.", "target"
)
ENGINE_PREFIX_HITS = counter(
    "llmslo_engine_prefix_cache_hits_total", "Prompt tokens found in the prefix cache.", "target"
)
ENGINE_PROMPT_TOKENS = counter("llmslo_engine_prompt_tokens_total", "Prompt tokens of all requests.", "target")
ENGINE_GENERATION_TOKENS = counter("llmslo_engine_generation_tokens_total", "Tokens generated.", "target")
ENGINE_REQUESTS = counter("llmslo_engine_requests_total", "Requests finished, for any reason.", "target")
ENGINE_FINISHED = counter(
    "llmslo_engine_requests_finished_total",
    "Requests finished, by the reason that the engine counts: stop, length, abort, error, repetition.",
    "target",
    "reason",
)
ENGINE_DRAFTS = counter(
    "llmslo_engine_speculation_drafts_total", "Drafts of speculative decoding that the model verified.", "target"
)
ENGINE_DRAFT_TOKENS = counter(
    "llmslo_engine_speculation_draft_tokens_total", "Tokens drafted by speculative decoding.", "target"
)
ENGINE_ACCEPTED_TOKENS = counter(
    "llmslo_engine_speculation_accepted_tokens_total",
    "Tokens drafted by speculative decoding that the model accepted.",
    "target",
)
ENGINE_ACCEPTANCE = gauge(
    "llmslo_engine_speculation_acceptance_ratio",
    "Share of the draft tokens that were accepted in the latest batches, as the engine computes it; 0 also without speculation.",
    "target",
)
ENGINE_SPECULATION_LENGTH = gauge(
    "llmslo_engine_speculation_length_tokens",
    "Tokens per draft in the latest batches, with the one that the model adds, as the engine computes it; 0 without speculation.",
    "target",
)
ENGINE_TTFT = histogram("llmslo_engine_ttft_seconds", "TTFT as measured by the engine, in its own buckets.", "target")
ENGINE_ITL = histogram("llmslo_engine_itl_seconds", "ITL as measured by the engine, in its own buckets.", "target")
ENGINE_QUEUE = histogram(
    "llmslo_engine_queue_seconds", "Queue time as measured by the engine, in its own buckets.", "target"
)
ENGINE_CHANGES = counter(
    "llmslo_engine_changes_total",
    "Changes of the engine: restarts, and changes of engine, version, model or flags, or of the GPU driver.",
    "target",
    "what",
)
ENGINE_LAST_CHANGE = gauge(
    "llmslo_engine_last_change_timestamp_seconds",
    "When the engine last changed, since the prober's start.",
    "target",
    "what",
)
ENGINE_CHANGE_KINDS = ("engine", "version", "model", "flags", "driver", "restart")

ALL: tuple[AnySeries, ...] = tuple(value for value in globals().copy().values() if isinstance(value, Series))
