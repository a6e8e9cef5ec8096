"""KServe's predictor. Metrics page only. An LLMInferenceService consists of vLLM and llm-d, which have tables of their own."""

from prober.measure.engine_signals import EngineTable, PageShape, optional, signals

# Names at commit aaac4e2.
TABLES = (
    EngineTable(
        engine="kserve",
        shape=PageShape(names=("request_predict_seconds_count",)),
        signals=signals(
            requests_finished_total="request_predict_seconds_count",
            e2e_seconds="request_predict_seconds",
            start_time_seconds=optional("process_start_time_seconds"),
        ),
        port=8080,
        lazy=True,
        note="scrape the engine's pod for more: the predictor knows the duration of requests only",
    ),
)
