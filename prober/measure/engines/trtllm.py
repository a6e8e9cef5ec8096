"""TensorRT-LLM's trtllm-serve. Writes a space after a chunk's JSON; sends chunks with empty content for unflushed text."""

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
    total,
)

DIALECT = Dialect(
    name="trtllm",
    owned_by="tensorrt_llm",
    force_length={"ignore_eos": True, "min_tokens": Dialect.TOKENS},
    cache_bypass={"cache_salt": Dialect.SALT},
    continuous_usage=True,
)

# Names from the sources of 2026; early 1.2 has only the histograms and two gauges. Gauges have the label pid and stay after their
# process has ended, so they are not summed. The JSON under /metrics is never requested: it is a queue, and reading it would take values
# from its other readers.
_REASONS = {"stop": ("stop",), "length": ("length",), "abort": ("cancelled", "timeout")}
_FINISHED = "trtllm_request_success_total"
_PARALLEL = ("tensor", "pipeline", "context", "expert")


def _errors(*codes: str) -> Source:
    # Cached tokens came with the same release as the counter of errors, and are on its page from the start.
    return counted("trtllm_request_error_total", "http_code", codes, "trtllm_prompt_cached_tokens_total")


TABLES = (
    EngineTable(
        engine="trtllm",
        shape=PageShape(prefixes=("trtllm_",)),
        signals=signals(
            requests_running=Source("trtllm_num_requests_running", Aggregation.MAX),
            requests_waiting=Source("trtllm_num_requests_waiting", Aggregation.MAX),
            kv_cache_usage_ratio="trtllm_kv_cache_utilization",
            kv_cache_capacity_tokens=Computed(
                "product",
                (
                    Source("trtllm_kv_cache_max_blocks", Aggregation.MAX),
                    Source("trtllm_kv_cache_tokens_per_block", Aggregation.MAX),
                ),
            ),
            prefix_cache_queries_tokens_total="trtllm_prompt_tokens_total",
            prefix_cache_hits_tokens_total="trtllm_prompt_cached_tokens_total",
            prompt_tokens_total="trtllm_prompt_tokens_total",
            generation_tokens_total="trtllm_generation_tokens_total",
            requests_finished_total=_FINISHED,
            requests_judged_total=total(
                _errors("429", *SERVER_ERRORS), Source(_FINISHED, where={"finished_reason": ("stop", "length")})
            ),
            requests_failed_total=_errors(*SERVER_ERRORS),
            requests_rejected_total=_errors("429"),
            **{
                f"finished_{reason}_total": (Source(_FINISHED, where={"finished_reason": theirs}, expected=False),)
                for reason, theirs in _REASONS.items()
            },
            speculation_draft_tokens_total=optional("trtllm_spec_decode_num_draft_tokens_total"),
            speculation_accepted_tokens_total=optional("trtllm_spec_decode_num_accepted_tokens_total"),
            speculation_length_tokens=optional("trtllm_spec_decode_acceptance_length"),
            ttft_seconds="trtllm_time_to_first_token_seconds",
            tpot_seconds="trtllm_time_per_output_token_seconds",
            queue_seconds="trtllm_request_queue_time_seconds",
            e2e_seconds="trtllm_e2e_request_latency_seconds",
            prefill_seconds=optional("trtllm_request_prefill_time_seconds"),
            decode_seconds=optional("trtllm_request_decode_time_seconds"),
            # In Dynamo's workers, which count no failures.
            kv_transfer_seconds=optional("trtllm_kv_transfer_latency_seconds"),
        ),
        paths=("/prometheus/metrics",),
        flags=(
            ("trtllm_model_config_info", ("dtype", "quantization", "max_model_len", "gpu_type")),
            ("trtllm_parallel_config_info", tuple(f"{kind}_parallel_size" for kind in _PARALLEL)),
            ("trtllm_speculative_config_info", ("spec_method", "spec_num_tokens", "spec_draft_model")),
            ("trtllm_kv_cache_config_info", ("page_size", "enable_block_reuse", "enable_partial_reuse", "cache_dtype")),
            ("trtllm_kv_cache_config_info", ("free_gpu_memory_fraction",)),
        ),
        lazy=True,
        facts=(JsonFact("version", "/version", ("version",)),),
        needs="return_perf_metrics: true, and enable_iter_perf_stats: true for requests and KV cache, in the LLM arguments",
    ),
)
CONTEXT = (JsonFact("engine_version", "/version", ("version",)),)
