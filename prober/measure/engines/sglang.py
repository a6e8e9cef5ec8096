"""SGLang (0.5). While loading its model it listens and answers 503 on /health. Named events carry token ids."""

from dataclasses import replace

from prober.measure.chat import Dialect
from prober.measure.engine_signals import (
    SERVER_ERRORS,
    Aggregation,
    Computed,
    EngineTable,
    JsonFact,
    PageShape,
    Source,
    counted,
    optional,
    signals,
)

DIALECT = Dialect(
    name="sglang",
    owned_by="sglang",
    force_length={"ignore_eos": True, "min_tokens": Dialect.TOKENS},
    cache_bypass={"cache_salt": Dialect.SALT},
    continuous_usage=True,
    listens_while_loading=True,
)

# Names from the wheels 0.4.0 to 0.5.23. `cache_hit_rate` is only about the last prefill and not read. Counters change when a request
# ends. A rank's copies (--enable-metrics-for-all-schedulers) count once; priority "" is the total of all priorities.
_TOTAL = {"priority": ("",)}
_TIERS = {"cache_source": ("device", "host", "storage")}  # without their total
_PREFILL = {"mode": ("prefill_cache", "prefill_compute")}
# Of requests for answers: the counter has all paths, also /metrics and /health. The status is that of the headers: an error inside a
# stream is not seen. A full queue answers 503.
_PATHS = ("/generate", "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings")


def _responses(statuses: tuple[str, ...]) -> Source:
    source = counted("sglang:http_responses_total", "status_code", statuses)
    return replace(source, where={**source.where, "endpoint": _PATHS}, since="0.5.7")


_USAGES = ("token", "full_token", "swa_token", "mamba")
SIGNALS = signals(
    requests_running=Source("sglang:num_running_reqs", where=_TOTAL),
    requests_waiting=Computed(
        "sum",
        (
            Source("sglang:num_queue_reqs", where=_TOTAL),
            Source("sglang:num_grammar_queue_reqs", where=_TOTAL),
            Source("sglang:num_prefill_bootstrap_queue_reqs", where=_TOTAL),
            Source("sglang:num_decode_prealloc_queue_reqs", where=_TOTAL),
            Source("sglang:num_decode_transfer_queue_reqs", where=_TOTAL),
        ),
    ),
    # Tokens held only by the prefix cache are free. A hybrid model has a pool for each kind of layer, and the fullest one binds; the
    # capacity in tokens is that of full attention.
    kv_cache_usage_ratio_max=Computed(
        "max", tuple(Source(f"sglang:{pool}_usage", Aggregation.MAX, where=_TOTAL) for pool in _USAGES)
    ),
    kv_cache_usage_ratio_mean=(optional("sglang:full_token_usage"), Source("sglang:token_usage", where=_TOTAL)),
    kv_cache_capacity_tokens=(
        Source("sglang:max_total_num_tokens", since="0.5.6"),
        Computed(
            "product",
            (Source("sglang:num_pages"), Source("sglang:page_size", Aggregation.FIRST)),
            since="0.5.12",
            expected=False,
        ),
        Source(
            "sglang:cache_config_info", labels=("num_pages", "page_size"), since="0.5.9", until="0.5.12", expected=False
        ),
    ),
    preemptions_total=Source("sglang:num_retracted_requests_total", since="0.5.7"),
    prefix_cache_queries_tokens_total=(
        Source("sglang:realtime_tokens_total", where=_PREFILL, since="0.5.7"),
        Source("sglang:prompt_tokens_total", since="0.4.4", until="0.5.7"),
    ),
    prefix_cache_hits_tokens_total=(
        Source("sglang:realtime_tokens_total", where={"mode": ("prefill_cache",)}, since="0.5.7"),
        Source("sglang:cached_tokens_total", where=_TIERS, since="0.4.4", until="0.5.7"),
    ),
    prompt_tokens_total="sglang:prompt_tokens_total",
    generation_tokens_total="sglang:generation_tokens_total",
    requests_finished_total="sglang:num_requests_total",  # for all reasons; aborted ones have their own counter
    finished_abort_total=Source("sglang:num_aborted_requests_total", since="0.5.3", expected=False),
    requests_judged_total=_responses(("200", "429", *SERVER_ERRORS)),
    requests_failed_total=_responses(SERVER_ERRORS),
    requests_rejected_total=_responses(("429",)),
    grammar_timeouts_total=optional("sglang:num_grammar_timeout_total"),
    speculation_drafts_total=Source("sglang:spec_verify_calls_total", since="0.5.14", expected=False),
    # About the latest batches; 0 without speculation.
    speculation_acceptance_ratio=Source("sglang:spec_accept_rate", since="0.5.4", expected=False),
    speculation_length_tokens=optional("sglang:spec_accept_length"),
    ttft_seconds="sglang:time_to_first_token_seconds",
    itl_seconds=Source("sglang:inter_token_latency_seconds", since="0.4.4"),
    tpot_seconds=(
        Source("sglang:request_time_per_output_token_seconds", since="0.5.22"),
        Source("sglang:time_per_output_token_seconds", until="0.4.5"),
    ),
    queue_seconds=(
        Source("sglang:queue_time_seconds", since="0.5.3"),
        Source("sglang:queue_time_s", since="0.5.2", until="0.5.3"),
    ),
    e2e_seconds="sglang:e2e_request_latency_seconds",
    prompt_tokens=optional("sglang:prompt_tokens_histogram"),
    output_tokens=optional("sglang:generation_tokens_histogram"),
    # On the page of the engine that prefills. In 0.5.6 a gauge of the latest transfer, which is no histogram and not read.
    kv_transfer_seconds=Source("sglang:kv_transfer_latency_ms", scale=0.001, expected=False),
    kv_transfer_failures_total=Computed(
        "sum",
        (Source("sglang:num_transfer_failed_reqs_total"), Source("sglang:num_bootstrap_failed_reqs_total")),
        expected=False,
    ),
)
# Of the server's arguments those that decide how it computes. Its keys, ports, addresses and random seed are not read.
_SETTINGS = (
    *("dtype", "quantization", "kv_cache_dtype", "mem_fraction_static", "page_size", "attention_backend"),
    *("chunked_prefill_size", "max_prefill_tokens", "schedule_policy", "schedule_conservativeness", "grammar_backend"),
    *("disable_radix_cache", "disable_cuda_graph", "disable_overlap_schedule", "enable_mixed_chunk", "ep_size"),
    *("enable_dp_attention", "enable_hierarchical_cache", "disaggregation_mode", "max_queued_requests"),
    *("speculative_algorithm", "speculative_num_steps", "speculative_num_draft_tokens"),
)
TABLES = (
    EngineTable(
        engine="sglang",
        shape=PageShape(prefixes=("sglang:",)),
        signals=SIGNALS,
        duplicate_labels=("tp_rank", "pp_rank", "moe_ep_rank"),
        lazy=True,
        facts=(
            JsonFact("version", "/server_info", ("version",)),
            JsonFact("version", "/get_server_info", ("version",)),
            JsonFact("model", "/get_model_info", ("model_path",)),
            JsonFact("context_tokens", "/server_info", ("context_length",)),
            JsonFact("context_tokens", "/v1/models", ("data", 0, "max_model_len")),
            JsonFact("capacity_tokens", "/server_info", ("max_total_num_tokens",)),
            JsonFact("requests_max", "/server_info", ("max_running_requests",)),
            JsonFact("tensor_parallel", "/server_info", ("tp_size",), is_setting=True),
            JsonFact("pipeline_parallel", "/server_info", ("pp_size",), is_setting=True),
            JsonFact("data_parallel", "/server_info", ("dp_size",), is_setting=True),
            *(JsonFact(name, "/server_info", (name,), is_setting=True) for name in _SETTINGS),
        ),
        needs="start the server with --enable-metrics",
    ),
)
# `/server_info` (before 0.5.4 `/get_server_info`) has all server arguments, including its API key: only these are read.
CONTEXT = tuple(
    JsonFact(name, path, (key,))
    for path in ("/server_info", "/get_server_info")
    for name, key in (
        ("engine_version", "version"),
        ("weights", "model_path"),
        ("model_revision", "revision"),
        ("tokenizer", "tokenizer_path"),
        ("precision", "dtype"),
        ("quantization", "quantization"),
        ("tensor_parallel", "tp_size"),
        ("pipeline_parallel", "pp_size"),
        ("data_parallel", "dp_size"),
        ("attention_backend", "attention_backend"),
        ("scheduling_policy", "schedule_policy"),
        ("max_batch", "max_running_requests"),
        ("speculation", "speculative_algorithm"),
    )
)
