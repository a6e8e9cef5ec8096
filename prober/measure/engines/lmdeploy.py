"""LMDeploy (0.18). Its field for the minimum length is `min_new_tokens`."""

from prober.measure.chat import Dialect
from prober.measure.engine_signals import Computed, EngineTable, PageShape, Source, counted, optional, signals

DIALECT = Dialect(
    name="lmdeploy",
    owned_by="lmdeploy",
    force_length={"ignore_eos": True, "min_new_tokens": Dialect.TOKENS},
)

# Names from 0.18.0. request_success_total also counts errors and cancelled requests; prefix_cache_hit_rate is only a rate.


def _ended(*kinds: str) -> Source:
    return counted(_REQUESTS, "finished_reason", tuple(f"ResponseType.{kind}" for kind in kinds))


_REQUESTS = "lmdeploy:request_success_total"
_FAILED = ("INTERNAL_ENGINE_ERROR", "ENGINE_STOP_ERROR", "HANDLER_NOT_EXIST", "OUT_OF_MEMORY")
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
            requests_finished_total=_REQUESTS,
            requests_judged_total=_ended("SUCCESS", "FINISH", "NO_QUEUE", *_FAILED),
            requests_failed_total=_ended(*_FAILED),
            requests_rejected_total=_ended("NO_QUEUE"),
            speculation_drafts_total=optional("lmdeploy:spec_decode_num_drafts_total"),
            speculation_draft_tokens_total=optional("lmdeploy:spec_decode_num_draft_tokens_total"),
            speculation_accepted_tokens_total=optional("lmdeploy:spec_decode_num_accepted_tokens_total"),
            ttft_seconds="lmdeploy:time_to_first_token_seconds",
            itl_seconds="lmdeploy:iter_token_latency",
            tpot_seconds="lmdeploy:time_per_output_token_seconds",
            queue_seconds="lmdeploy:request_queue_time_seconds",
            e2e_seconds="lmdeploy:e2e_request_latency_seconds",
            prefill_seconds=optional("lmdeploy:request_prefill_time_seconds"),
            decode_seconds=optional("lmdeploy:request_decode_time_seconds"),
        ),
        lazy=True,
        needs="the page is off under --disable-metrics",
    ),
)
