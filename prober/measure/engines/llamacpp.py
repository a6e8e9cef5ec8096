"""The llama.cpp server. Says Loading model on /health while it loads; ends an error without [DONE]."""

from prober.measure.chat import Dialect
from prober.measure.engine_signals import Fact, Over, Shape, Sum, Table, Value

DIALECT = Dialect(
    name="llamacpp",
    owned_by="llamacpp",
    force_length={"ignore_eos": True},
    cache_bypass={"cache_prompt": False},
    loads_listening=True,
)

# Names from 0c1e570, seen live. The rates *_tokens_seconds and n_busy_slots_per_decode are means since the last scrape by
# anybody and not read. prompt_tokens_total leaves out what came from the cache since that is counted beside it.
_PROMPT = Value("llamacpp:prompt_tokens_total")
_CACHED = Value("llamacpp:prompt_tokens_cached_total", expected=False)
TABLES = (
    Table(
        engine="llamacpp",
        shape=Shape(prefixes=("llamacpp:",)),
        signals={
            "requests_running": (Value("llamacpp:requests_processing"),),
            "requests_waiting": (Value("llamacpp:requests_deferred"),),
            "kv_cache_usage_ratio_max": (Value("llamacpp:kv_cache_usage_ratio", Over.MAX, expected=False),),
            "kv_cache_usage_ratio_mean": (Value("llamacpp:kv_cache_usage_ratio", Over.MEAN, expected=False),),
            "prefix_cache_queries_tokens_total": (Sum(_CACHED, (_PROMPT,), expected=False),),
            "prefix_cache_hits_tokens_total": (_CACHED,),
            "prompt_tokens_total": (Sum(_PROMPT, (_CACHED,)),),
            "generation_tokens_total": (Value("llamacpp:tokens_predicted_total"),),
        },
        models=(),
        facts=(
            Fact("version", "/props", ("build_info",)),
            Fact("model", "/v1/models", ("data", 0, "id")),
            Fact("context_tokens", "/props", ("default_generation_settings", "n_ctx")),
            Fact("requests_max", "/props", ("total_slots",)),
        ),
        start_time_header="process-start-time-unix",
        needs="start the server with --metrics; a router wants /metrics?model=",
        note="each scrape starts its rate gauges anew, so they mean nothing to a second scraper; the counters do",
    ),
)
