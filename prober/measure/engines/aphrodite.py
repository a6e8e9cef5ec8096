"""Aphrodite (0.24). A page only: its wire is the plain OpenAI one here. vLLM's names under its own prefix."""

from prober.measure.engine_signals import Shape, latest, renamed
from prober.measure.engines import vllm

_PREFIX = "aphrodite:"
TABLES = (
    renamed(
        latest(vllm.V1),
        engine="aphrodite",
        old="vllm:",
        new=_PREFIX,
        shape=Shape(prefixes=(_PREFIX,), with_label="engine"),
    ),
)
