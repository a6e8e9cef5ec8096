"""KServe's predictor. A page only. An LLMInferenceService is vLLM pods behind llm-d: their own tables read those."""

from prober.measure.engine_signals import Aggregation, EngineTable, HistogramSource, PageShape, SampleSource

# Names at aaac4e2.
TABLES = (
    EngineTable(
        engine="kserve",
        shape=PageShape(names=("request_predict_seconds_count",)),
        signals={
            "requests_finished_total": (SampleSource("request_predict_seconds_count"),),
            "e2e_seconds": (HistogramSource("request_predict_seconds"),),
            "start_time_seconds": (SampleSource("process_start_time_seconds", Aggregation.FIRST, expected=False),),
        },
        port=8080,
        lazy=True,
        note="scrape the engine's pod for more: the predictor knows the duration of requests only",
    ),
)
