"""Aphrodite (0.24): metrics page only, as its API is plain OpenAI. It has vLLM's names under its own prefix."""

from prober.measure.engine_signals import PageShape, latest_release, with_renamed_metrics
from prober.measure.engines import vllm

_PREFIX = "aphrodite:"
TABLES = (
    with_renamed_metrics(
        latest_release(vllm.V1),
        engine="aphrodite",
        old="vllm:",
        new=_PREFIX,
        shape=PageShape(prefixes=(_PREFIX,), with_label="engine"),
    ),
)
