"""Series of the engines' own pages."""

from prober.exposition.families import Series, counter, gauge, histogram

ENGINE_UP = gauge("llmslo_engine_up", "1 while the engine's own page can be read.", "target")
ENGINE_INFO = gauge("llmslo_engine_info", "1; who the engine says it is.", "target", "engine", "version", "model")
ENGINE_CONTEXT = gauge("llmslo_engine_context_tokens", "Longest prompt and answer together.", "target")
ENGINE_RUNNING = gauge("llmslo_engine_requests_running", "Requests in the batch.", "target")
ENGINE_WAITING = gauge("llmslo_engine_requests_waiting", "Requests that wait.", "target")
ENGINE_KV_USAGE = gauge("llmslo_engine_kv_cache_usage_ratio", "KV cache in use, of the fullest rank.", "target")
ENGINE_KV_CAPACITY = gauge("llmslo_engine_kv_cache_capacity_tokens", "Tokens that all ranks' KV caches hold.", "target")
ENGINE_PREEMPTIONS = counter("llmslo_engine_preemptions_total", "Requests put back for want of KV cache.", "target")
ENGINE_PREFIX_QUERIES = counter("llmslo_engine_prefix_cache_queries_total", "Prompt tokens looked up.", "target")
ENGINE_PREFIX_HITS = counter("llmslo_engine_prefix_cache_hits_total", "Prompt tokens found in the cache.", "target")
ENGINE_PROMPT_TOKENS = counter("llmslo_engine_prompt_tokens_total", "Prompt tokens of all requests.", "target")
ENGINE_GENERATION_TOKENS = counter("llmslo_engine_generation_tokens_total", "Tokens generated.", "target")
ENGINE_REQUESTS = counter("llmslo_engine_requests_total", "Requests finished, for whatever reason.", "target")
ENGINE_TTFT = histogram("llmslo_engine_ttft_seconds", "The engine's own TTFT, in its own buckets.", "target")
ENGINE_ITL = histogram("llmslo_engine_itl_seconds", "The engine's own ITL, in its own buckets.", "target")
ENGINE_QUEUE = histogram("llmslo_engine_queue_seconds", "The engine's own queue time, in its own buckets.", "target")
ENGINE_CHANGES = counter(
    "llmslo_engine_changes_total",
    "Times the engine was restarted or said another version, model or flag, or its GPUs another driver.",
    "target",
    "what",
)
ENGINE_CHANGE_KINDS = ("engine", "version", "model", "flags", "driver", "restart")

ALL: tuple[Series, ...] = tuple(value for value in globals().copy().values() if isinstance(value, Series))
