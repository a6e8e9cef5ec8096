"""MLC LLM. Forces a length only through its debug switch."""

from prober.measure.chat import Dialect
from prober.measure.engine_signals import Aggregation, EngineTable, PageShape, Source, signals

DIALECT = Dialect(
    name="mlc",
    owned_by="MLC-LLM",
    force_length={"debug_config": {"ignore_eos": True}},
    health=None,
)

# Names from 79d603f. Its text format is its own: tabs, label values without quotes; it has only the first model.
TABLES = (
    EngineTable(
        engine="mlc",
        shape=PageShape(names=("engine_decode_time_sum", "completion_tokens_sum")),
        signals=signals(
            prompt_tokens_total=Source("prompt_tokens_sum", Aggregation.FIRST),
            generation_tokens_total=Source("completion_tokens_sum", Aggregation.FIRST),
        ),
        model_labels=(),
    ),
)
