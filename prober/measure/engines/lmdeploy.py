"""LMDeploy (0.18). Names the lower bound of a length `min_new_tokens`."""

from prober.measure.chat import Dialect
from prober.measure.engine_signals import Buckets, Over, Shape, Sum, Table, Value

DIALECT = Dialect(
    name="lmdeploy",
    owned_by="lmdeploy",
    force_length={"ignore_eos": True, "min_new_tokens": Dialect.TOKENS},
)

# Names from 0.18.0. request_success_total counts errors and cancelled requests too; prefix_cache_hit_rate is a rate only.
TABLES = (
    Table(
        engine="lmdeploy",
        shape=Shape(prefixes=("lmdeploy:",)),
        signals={
            "requests_running": (Value("lmdeploy:num_requests_running"),),
            "requests_waiting": (
                Sum(Value("lmdeploy:num_requests_waiting"), (Value("lmdeploy:num_api_requests_waiting"),)),
            ),
            "requests_waiting_for_capacity": (Value("lmdeploy:num_requests_waiting"),),
            "kv_cache_usage_ratio_max": (Value("lmdeploy:gpu_cache_usage_perc", Over.MAX),),
            "kv_cache_usage_ratio_mean": (Value("lmdeploy:gpu_cache_usage_perc", Over.MEAN),),
            "prefix_cache_queries_tokens_total": (Value("lmdeploy:prompt_tokens_total"),),
            "prefix_cache_hits_tokens_total": (Value("lmdeploy:cached_tokens_total"),),
            "prompt_tokens_total": (Value("lmdeploy:prompt_tokens_total"),),
            "generation_tokens_total": (Value("lmdeploy:generation_tokens_total"),),
            "requests_finished_total": (Value("lmdeploy:request_success_total"),),
            "ttft_seconds": (Buckets("lmdeploy:time_to_first_token_seconds"),),
            "itl_seconds": (Buckets("lmdeploy:iter_token_latency"),),
            "tpot_seconds": (Buckets("lmdeploy:time_per_output_token_seconds"),),
            "queue_seconds": (Buckets("lmdeploy:request_queue_time_seconds"),),
            "e2e_seconds": (Buckets("lmdeploy:e2e_request_latency_seconds"),),
        },
        lazy=True,
        needs="the page is off under --disable-metrics",
    ),
)
