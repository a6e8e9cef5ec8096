"""The llama.cpp server. While loading, /health answers "Loading model". An answer that ends with an error has no [DONE]."""

from prober.measure.chat import Dialect
from prober.measure.engine_signals import Computed, EngineTable, JsonFact, OfModel, PageShape, Source, optional, signals

DIALECT = Dialect(
    name="llamacpp",
    owned_by="llamacpp",
    force_length={"ignore_eos": True},
    cache_bypass={"cache_prompt": False},
    listens_while_loading=True,
)

# Names from 0c1e570, tested live. The rates *_tokens_seconds and n_busy_slots_per_decode are means since anyone's last scrape and are
# not read. prompt_tokens_total excludes cached tokens since they have a counter of their own.
_PROMPT = Source("llamacpp:prompt_tokens_total")
_CACHED = Source("llamacpp:prompt_tokens_cached_total", expected=False)
TABLES = (
    EngineTable(
        engine="llamacpp",
        shape=PageShape(prefixes=("llamacpp:",)),
        signals=signals(
            requests_running="llamacpp:requests_processing",
            requests_waiting="llamacpp:requests_deferred",
            kv_cache_usage_ratio=optional("llamacpp:kv_cache_usage_ratio"),
            prefix_cache_queries_tokens_total=Computed("sum", (_CACHED, _PROMPT), expected=False),
            prefix_cache_hits_tokens_total=_CACHED,
            prompt_tokens_total=Computed("sum", (_PROMPT, _CACHED)),
            generation_tokens_total="llamacpp:tokens_predicted_total",
            speculation_drafts_total=optional("llamacpp:spec_decode_num_drafts_total"),
            speculation_draft_tokens_total=optional("llamacpp:spec_decode_num_draft_tokens_total"),
            speculation_accepted_tokens_total=optional("llamacpp:spec_decode_num_accepted_tokens_total"),
        ),
        model_labels=(),
        facts=(
            JsonFact("version", "/props", ("build_info",)),
            JsonFact("model", "/v1/models", ("data", 0, "id")),
            JsonFact("context_tokens", "/props", ("default_generation_settings", "n_ctx")),
            JsonFact("requests_max", "/props", ("total_slots",)),
        ),
        start_time_header="process-start-time-unix",
        needs="start the server with --metrics; a router wants /metrics?model=",
        note="each scrape starts its rate gauges anew, so they mean nothing to a second scraper; the counters do",
    ),
)
CONTEXT = (
    JsonFact("engine_version", "/props", ("build_info",)),
    JsonFact("weights", "/props", ("model_path",)),
    JsonFact("quantization", "/props", ("model_ftype",)),  # F32, F16, BF16 for unquantised weights
    JsonFact("quantization", "/v1/models", ("data", OfModel("id"), "meta", "ftype")),
    JsonFact("chat_template", "/props", ("chat_template",), is_text=True),
    JsonFact("max_batch", "/props", ("total_slots",)),
)
