"""vLLM (0.8 to 0.33; 0.32 tested live). The role chunk comes with the first output; an answer ends with reason, usage chunk, [DONE].

`cache_salt` since 0.9; older releases ignore unknown fields."""

from dataclasses import replace

from prober.measure.chat import Dialect
from prober.measure.engine_signals import (
    FINISH_REASONS,
    Aggregation,
    Computed,
    EngineTable,
    JsonFact,
    OfModel,
    PageShape,
    Source,
    counted,
    optional,
    signals,
    total,
)

DIALECT = Dialect(
    name="vllm",
    owned_by="vllm",
    force_length={"ignore_eos": True, "min_tokens": Dialect.TOKENS},
    cache_bypass={"cache_salt": Dialect.SALT},
    continuous_usage=True,
)

_FINISHED = "vllm:request_success_total"  # despite its name, of all reasons, which are on the page from the start
_HTTP = "http_requests_total"  # of the HTTP server's own instrumentation, without /health and /metrics
_EVERY_RELEASE = signals(
    requests_running="vllm:num_requests_running",
    requests_waiting="vllm:num_requests_waiting",  # includes those deferred for LoRA, KV transfer or grammar
    preemptions_total="vllm:num_preemptions_total",
    prompt_tokens_total="vllm:prompt_tokens_total",
    generation_tokens_total="vllm:generation_tokens_total",
    requests_finished_total=_FINISHED,
    **{
        f"finished_{reason}_total": (Source(_FINISHED, where={"finished_reason": (reason,)}, expected=False),)
        for reason in FINISH_REASONS
    },
    # `error` is always a status 500, or an error inside a stream. A rejected request has status 503 and never reaches the engine.
    requests_judged_total=total(
        Source(_FINISHED, where={"finished_reason": ("stop", "length", "error", "repetition")}),
        Source("vllm:admission_rejections_total"),
    ),
    requests_failed_total=Source(_FINISHED, where={"finished_reason": ("error",)}, expected=False),
    requests_rejected_total=optional("vllm:admission_rejections_total"),
    http_errors_total=counted(_HTTP, "status", ("5xx",)),
    **{  # only if it speculates
        f"speculation_{kind}_tokens_total": optional(f"vllm:spec_decode_num_{kind}_tokens_total")
        for kind in ("draft", "accepted")
    },
    ttft_seconds="vllm:time_to_first_token_seconds",
    e2e_seconds="vllm:e2e_request_latency_seconds",
    prefill_seconds=optional("vllm:request_prefill_time_seconds"),
    decode_seconds=optional("vllm:request_decode_time_seconds"),
    prompt_tokens=optional("vllm:request_prompt_tokens"),
    output_tokens=optional("vllm:request_generation_tokens"),
    # Absent with several API servers, whose registries are merged.
    start_time_seconds=optional("process_start_time_seconds"),
)
# Names from the wheels 0.4.3 to 0.33.0; 0.32.0 also tested live. All `_perc` are 0 to 1. Disconnected clients are not counted.
# `iteration_tokens_total` is a histogram and `lora_requests_info` has a time as value: neither is a signal.
_AWAKE = Source("vllm:engine_sleep_state", Aggregation.MAX, where={"sleep_state": ("awake",)}, expected=False)


def _failures(connector: str, *kinds: str) -> Computed:
    return total(*(Source(f"vllm:{connector}_num_{kind}_total") for kind in kinds))


_SIGNALS = signals(
    **_EVERY_RELEASE,
    requests_deferred=counted("vllm:num_requests_waiting_by_reason", "reason", ("deferred",)),
    # 1 for the state that a rank is in; all ranks sleep where none is awake.
    sleeping=replace(_AWAKE, scale=-1.0, offset=1.0),
    # Blocks held only by the prefix cache count as free.
    kv_cache_usage_ratio=(
        Source("vllm:kv_cache_usage_perc", since="0.9.2"),
        Source("vllm:gpu_cache_usage_perc", until="0.12.0"),
    ),
    kv_cache_capacity_tokens=(
        Source("vllm:cache_config_info", labels=("kv_cache_size_tokens",), since="0.24.0"),
        Source("vllm:cache_config_info", labels=("num_gpu_blocks", "block_size"), until="0.24.0"),  # wrong for hybrids
    ),
    prefix_cache_queries_tokens_total=(
        Source("vllm:prefix_cache_queries_total", since="0.9.2"),
        Source("vllm:gpu_prefix_cache_queries_total", until="0.12.0"),
    ),
    prefix_cache_hits_tokens_total=(
        Source("vllm:prefix_cache_hits_total", since="0.9.2"),
        Source("vllm:gpu_prefix_cache_hits_total", until="0.12.0"),
    ),
    speculation_drafts_total=optional("vllm:spec_decode_num_drafts_total"),
    # Despite its name, time per output token always had one observation per step.
    itl_seconds=(
        Source("vllm:inter_token_latency_seconds", since="0.10.2"),
        Source("vllm:time_per_output_token_seconds", until="0.15.0"),
    ),
    tpot_seconds=Source("vllm:request_time_per_output_token_seconds", since="0.11.0"),
    queue_seconds="vllm:request_queue_time_seconds",  # includes the KV transfer on a decoding engine
    # NIXL since 0.11.1, Mooncake since 0.33; on the page of the engine that pulls or pushes the cache. Stores elsewhere (offloading,
    # Mooncake's store, LMCache) are no transfer between the two.
    kv_transfer_seconds=(optional("vllm:nixl_xfer_time_seconds"), optional("vllm:mooncake_xfer_time_seconds")),
    # A cache expires where it was not fetched in time. A failed notification is on the same transfer's other side: not counted twice.
    kv_transfer_failures_total=(
        _failures("nixl", "failed_transfers", "kv_expired_reqs"),
        _failures("mooncake", "failed_transfers", "failed_recvs", "kv_expired_reqs"),
    ),
    # Only with offloading. Before the newer names, one counter had both directions.
    **{
        f"kv_offload_load_{kind}_total": (
            optional(f"vllm:kv_offload_load_{theirs}_total"),
            counted(f"vllm:kv_offload_total_{theirs}_total", "transfer_type", ("CPU_to_GPU",)),
        )
        for kind, theirs in (("seconds", "time"), ("bytes", "bytes"))
    },
    kv_offload_failures_total=optional("vllm:kv_offload_tiering_promotion_job_failures_total"),
)
_FACTS = (
    JsonFact("version", "/version", ("version",)),
    JsonFact("model", "/v1/models", ("data", 0, "id")),
    JsonFact("context_tokens", "/v1/models", ("data", 0, "max_model_len")),
)
# Without num_gpu_blocks and the like, which memory profiling changes at each start.
_FLAGS = (
    "block_size",
    "cache_dtype",
    "enable_prefix_caching",
    "gpu_memory_utilization",
    "kv_offloading_backend",
    "kv_offloading_size",
    "kv_sharing_fast_prefill",
    "mamba_cache_mode",
    "num_gpu_blocks_override",
    "prefix_caching_hash_algo",
    "sliding_window",
)
V1 = EngineTable(
    engine="vllm",
    shape=PageShape(prefixes=("vllm:",), with_label="engine"),  # index of the data-parallel rank
    rank_label="engine",
    signals=_SIGNALS,
    flags=(("vllm:cache_config_info", _FLAGS), ("vllm:lora_requests_info", ("max_lora",))),
    facts=_FACTS,
    needs="start the server without --disable-log-stats",
)
# The Rust frontend (VLLM_USE_RUST_FRONTEND=1, 0.33) writes OpenMetrics without capacity and start time. The Python one also writes
# OpenMetrics if a proxy asks for it, but has at least one of the two.
_ONLY_PYTHON = ("vllm:cache_config_info", "process_start_time_seconds")
RUST = EngineTable(
    engine="vllm",
    shape=PageShape(prefixes=("vllm:",), with_label="engine", without_names=_ONLY_PYTHON, openmetrics=True),
    rank_label="engine",
    signals={
        name: sources
        for name, sources in _SIGNALS.items()
        if name not in ("kv_cache_capacity_tokens", "start_time_seconds")
    },
    facts=_FACTS,
    lazy=True,
)
# V0, removed in 0.11. Its prefix cache has only a rate, so no counters.
V0 = EngineTable(
    engine="vllm",
    shape=PageShape(prefixes=("vllm:",), without_label="engine"),
    signals=signals(
        kv_cache_usage_ratio="vllm:gpu_cache_usage_perc",
        kv_cache_capacity_tokens=Source("vllm:cache_config_info", labels=("num_gpu_blocks", "block_size")),
        **_EVERY_RELEASE,
        itl_seconds="vllm:time_per_output_token_seconds",
        queue_seconds=(
            Source("vllm:request_queue_time_seconds", since="0.6.6"),
            Source("vllm:time_in_queue_requests", since="0.6.6", expected=False),
        ),
    ),
    flags=(("vllm:cache_config_info", _FLAGS),),
    facts=_FACTS,
)
TABLES = (RUST, V1, V0)
# `/server_info` exists only with VLLM_SERVER_DEV_MODE=1. Only these parts are read, because it also contains the environment. Names
# from the sources of 0.32, which failed on the CPU (HTTP 500), so this part was not tested live.
_INFO, _CONFIG = "/server_info?config_format=json", "vllm_config"
CONTEXT = (
    JsonFact("engine_version", "/version", ("version",)),
    JsonFact("weights", "/v1/models", ("data", OfModel("id"), "root")),
    JsonFact("weights", _INFO, (_CONFIG, "model_config", "model")),
    JsonFact("model_revision", _INFO, (_CONFIG, "model_config", "revision")),
    JsonFact("tokenizer", _INFO, (_CONFIG, "model_config", "tokenizer")),
    JsonFact("precision", _INFO, (_CONFIG, "model_config", "dtype")),
    JsonFact("quantization", _INFO, (_CONFIG, "model_config", "quantization"), absent="none"),
    JsonFact("tensor_parallel", _INFO, (_CONFIG, "parallel_config", "tensor_parallel_size")),
    JsonFact("pipeline_parallel", _INFO, (_CONFIG, "parallel_config", "pipeline_parallel_size")),
    JsonFact("data_parallel", _INFO, (_CONFIG, "parallel_config", "data_parallel_size")),
    JsonFact("scheduling_policy", _INFO, (_CONFIG, "scheduler_config", "policy")),
    JsonFact("max_batch", _INFO, (_CONFIG, "scheduler_config", "max_num_seqs")),
    JsonFact("speculation", _INFO, (_CONFIG, "speculative_config", "method")),
)
