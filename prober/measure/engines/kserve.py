"""KServe's predictor. A page only. An LLMInferenceService is vLLM pods behind llm-d: their own tables read those."""

from prober.measure.engine_signals import Buckets, Over, Shape, Table, Value

# Names at aaac4e2.
TABLES = (
    Table(
        engine="kserve",
        shape=Shape(names=("request_predict_seconds_count",)),
        signals={
            "requests_finished_total": (Value("request_predict_seconds_count"),),
            "e2e_seconds": (Buckets("request_predict_seconds"),),
            "start_time_seconds": (Value("process_start_time_seconds", Over.FIRST, expected=False),),
        },
        port=8080,
        lazy=True,
        note="scrape the engine's pod for more: the predictor knows the duration of requests only",
    ),
)
