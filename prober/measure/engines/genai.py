"""Gateways with OpenTelemetry's generative AI names on their Prometheus page, such as Envoy AI Gateway. Metrics page only."""

from prober.measure.engine_signals import EngineTable, PageShape, Source, optional, signals


# Names contain the unit as in Envoy AI Gateway's exporter; other exporters omit it. All are histograms of ended answers. Cached tokens
# are not part of the prompt's, have no agreed name, and are not read.
def _tokens(kind: str) -> tuple[Source, ...]:
    names = ("gen_ai_client_token_usage_token_sum", "gen_ai_client_token_usage_sum")
    return tuple(Source(name, where={"gen_ai_token_type": (kind,)}) for name in names)


_REQUESTS = "gen_ai_server_request_duration_seconds"
TABLES = (
    EngineTable(
        engine="genai",
        shape=PageShape(names=(f"{_REQUESTS}_count",)),
        signals=signals(
            prompt_tokens_total=_tokens("input"),
            generation_tokens_total=_tokens("output"),
            requests_finished_total=f"{_REQUESTS}_count",
            # Streams only.
            ttft_seconds=optional("gen_ai_server_time_to_first_token_seconds"),
            tpot_seconds=optional("gen_ai_server_time_per_output_token_seconds"),
            e2e_seconds=Source(_REQUESTS),
        ),
        model_labels=("gen_ai_request_model",),
        lazy=True,
        note="a gateway knows neither queue nor KV cache: scrape the engine's own page for those",
    ),
)
