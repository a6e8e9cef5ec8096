"""TensorRT-LLM's trtllm-serve. Puts a space behind the JSON of a chunk; sends chunks with empty content for unflushed text."""

from prober.measure.chat import Dialect
from prober.measure.engine_signals import Buckets, Fact, Over, Product, Shape, Table, Value

DIALECT = Dialect(
    name="trtllm",
    owned_by="tensorrt_llm",
    force_length={"ignore_eos": True, "min_tokens": Dialect.TOKENS},
    cache_bypass={"cache_salt": Dialect.SALT},
    continuous_usage=True,
)

# Names from the sources of 2026; early 1.2 has only the histograms and two gauges. Gauges carry the label pid, and a process
# that is gone leaves its own behind, so they are not added up. The JSON under /metrics is never asked for: it is a queue, and
# whoever reads it takes the figures away from everybody else.
TABLES = (
    Table(
        engine="trtllm",
        shape=Shape(prefixes=("trtllm_",)),
        signals={
            "requests_running": (Value("trtllm_num_requests_running", Over.MAX),),
            "requests_waiting": (Value("trtllm_num_requests_waiting", Over.MAX),),
            "kv_cache_usage_ratio_max": (Value("trtllm_kv_cache_utilization", Over.MAX),),
            "kv_cache_usage_ratio_mean": (Value("trtllm_kv_cache_utilization", Over.MEAN),),
            "kv_cache_capacity_tokens": (
                Product(
                    (
                        Value("trtllm_kv_cache_max_blocks", Over.MAX),
                        Value("trtllm_kv_cache_tokens_per_block", Over.MAX),
                    )
                ),
            ),
            "prefix_cache_queries_tokens_total": (Value("trtllm_prompt_tokens_total"),),
            "prefix_cache_hits_tokens_total": (Value("trtllm_prompt_cached_tokens_total"),),
            "prompt_tokens_total": (Value("trtllm_prompt_tokens_total"),),
            "generation_tokens_total": (Value("trtllm_generation_tokens_total"),),
            "requests_finished_total": (Value("trtllm_request_success_total"),),
            "ttft_seconds": (Buckets("trtllm_time_to_first_token_seconds"),),
            "tpot_seconds": (Buckets("trtllm_time_per_output_token_seconds"),),
            "queue_seconds": (Buckets("trtllm_request_queue_time_seconds"),),
            "e2e_seconds": (Buckets("trtllm_e2e_request_latency_seconds"),),
        },
        paths=("/prometheus/metrics",),
        lazy=True,
        facts=(Fact("version", "/version", ("version",)),),
        needs="return_perf_metrics: true, and enable_iter_perf_stats: true for requests and KV cache, in the LLM arguments",
    ),
)
