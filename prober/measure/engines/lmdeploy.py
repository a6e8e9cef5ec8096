"""LMDeploy (0.18). Its field for the minimum length is `min_new_tokens`."""

from prober.measure.chat import Dialect
from prober.measure.engine_signals import Computed, EngineTable, PageShape, Source, optional, signals

DIALECT = Dialect(
    name="lmdeploy",
    owned_by="lmdeploy",
    force_length={"ignore_eos": True, "min_new_tokens": Dialect.TOKENS},
)

# Names from 0.18.0. request_success_total also counts errors and cancelled requests; prefix_cache_hit_rate is only a rate.
TABLES = (
    EngineTable(
        engine="lmdeploy",
        shape=PageShape(prefixes=("lmdeploy:",)),
        signals=signals(
            requests_running="lmdeploy:num_requests_running",
            requests_waiting=Computed(
                "sum",
                (Source("lmdeploy:num_requests_waiting"), Source("lmdeploy:num_api_requests_waiting")),
            ),
            kv_cache_usage_ratio="lmdeploy:gpu_cache_usage_perc",
            prefix_cache_queries_tokens_total="lmdeploy:prompt_tokens_total",
            prefix_cache_hits_tokens_total="lmdeploy:cached_tokens_total",
            prompt_tokens_total="lmdeploy:prompt_tokens_total",
            generation_tokens_total="lmdeploy:generation_tokens_total",
            requests_finished_total="lmdeploy:request_success_total",
            speculation_drafts_total=optional("lmdeploy:spec_decode_num_drafts_total"),
            speculation_draft_tokens_total=optional("lmdeploy:spec_decode_num_draft_tokens_total"),
            speculation_accepted_tokens_total=optional("lmdeploy:spec_decode_num_accepted_tokens_total"),
            ttft_seconds="lmdeploy:time_to_first_token_seconds",
            itl_seconds="lmdeploy:iter_token_latency",
            tpot_seconds="lmdeploy:time_per_output_token_seconds",
            queue_seconds="lmdeploy:request_queue_time_seconds",
            e2e_seconds="lmdeploy:e2e_request_latency_seconds",
        ),
        lazy=True,
        needs="the page is off under --disable-metrics",
    ),
)
