"""LiteLLM's proxy, identified by a response header. Its usage chunk has a choice with an empty delta."""

from prober.measure.chat import Dialect
from prober.measure.engine_signals import SERVER_ERRORS, EngineTable, PageShape, Source, counted, optional, signals

DIALECT = Dialect(name="litellm", header="x-litellm-version", health="/health/liveliness")

# Names from 1.109.1; 1.106.2 was also tested live. Counters declared *_metric appear on the page as *_metric_total. Requests in flight
# are those of one worker, including the scrape itself.
# `litellm_settings.prometheus_metrics_config` may leave out labels: without the status, success is unknown.
_REQUESTS = "litellm_proxy_total_requests_metric_total"
TABLES = (
    EngineTable(
        engine="litellm",
        shape=PageShape(prefixes=("litellm_",)),
        signals=signals(
            requests_running=Source("litellm_in_flight_requests", offset=-1.0),
            prefix_cache_queries_tokens_total=optional("litellm_input_tokens_metric_total"),
            prefix_cache_hits_tokens_total=optional("litellm_input_cached_tokens_metric_total"),
            prompt_tokens_total="litellm_input_tokens_metric_total",
            generation_tokens_total="litellm_output_tokens_metric_total",
            requests_finished_total=_REQUESTS,
            requests_judged_total=counted(_REQUESTS, "status_code", ("200", "429", *SERVER_ERRORS)),
            requests_failed_total=counted(_REQUESTS, "status_code", SERVER_ERRORS),
            requests_rejected_total=counted(_REQUESTS, "status_code", ("429",)),
            ttft_seconds=optional("litellm_llm_api_time_to_first_token_metric"),  # streaming only
            tpot_seconds="litellm_deployment_latency_per_output_token",
            queue_seconds="litellm_request_queue_time_seconds",
            e2e_seconds="litellm_request_total_latency_metric",
            start_time_seconds=optional("process_start_time_seconds"),
        ),
        paths=("/metrics/", "/metrics"),
        model_labels=("requested_model", "model_group", "model"),
        lazy=True,
        needs='litellm_settings.callbacks: ["prometheus"], and a proxy key as bearer token',
    ),
)
