"""Facets of a stage: figures that only some stages have, with computation, sentence and table. Reports, terminal and JSON iterate them.

A new measurement of a stage is a module with a frozen dataclass, a field of `Stage` for it, and an entry here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from prober.measure.result import ProbeResult
from prober.results.adapters import adapter_use_of
from prober.results.result import Stage
from prober.results.stage_parts import reasoning_of, retries_of, series_of, tool_calls_of
from prober.statistics.quantiles import Quantile, percentile_name

Columns = Mapping[str, Callable[[Any], float | str | Quantile | None]]
FEW_QS = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Facet:
    """A facet. Its values have a `text()`.

    name: field of `Stage`, with a value, a tuple of several, or None
    compute: computes the value from the stage's probes; None: other code sets it
    columns: column → value for tables, with a leading `#` for numbers; None is unknown. Without columns it has only sentences
    """

    name: str
    compute: Callable[[Sequence[ProbeResult]], Any] | None
    columns: Columns

    def of(self, stage: Stage) -> tuple[Any, ...]:
        """The values of a stage."""
        value = getattr(stage, self.name)
        return () if value is None else value if isinstance(value, tuple) else (value,)


def sentences(stage: Stage) -> Iterator[str]:
    """Yield a sentence for each facet of the stage."""
    yield from (f"{stage.name}: {part.text()}." for facet in FACETS for part in facet.of(stage))


def _quantiles(name: str, qs: Sequence[float], attribute: str) -> Columns:
    """One column per quantile `qs` of an attribute of a value."""

    def quantile(q: float, part: object) -> Quantile | None:
        return next((quantile for quantile in getattr(part, attribute) if quantile.q == q), None)

    return {f"#{name} {percentile_name(q)}": partial(quantile, q) for q in qs}


FACETS = (
    Facet(
        "series",
        series_of,
        {
            "part": lambda series: series.name,
            "#answers": lambda series: series.requests,
            **_quantiles("TTFT", FEW_QS, "ttft"),
            "#prompt tokens cached": lambda series: (
                f"{series.cached_tokens / series.prompt_tokens * 100:.3g}%" if series.prompt_tokens else None
            ),
            "not answered": lambda series: f"{series.unanswered:,}: {series.reason}" if series.unanswered else "0",
        },
    ),
    Facet(
        "reasoning",
        reasoning_of,
        {
            "#answers with reasoning": lambda part: part.requests,
            "#reasoning tokens, mean": lambda part: part.reasoning_tokens / part.counted if part.counted else None,
            "#answer tokens, mean": lambda part: part.answer_tokens / part.counted if part.counted else None,
            **_quantiles("first answer token", FEW_QS, "ttft_answer"),
            "#ended before the answer": lambda part: part.unanswered,
        },
    ),
    Facet(
        "tool_calls",
        tool_calls_of,
        {
            "#answers": lambda calls: calls.answers,
            "#with a call": lambda calls: calls.calling,
            "#calls": lambda calls: calls.calls,
            **_quantiles("first call", (0.5, 0.99), "ttft_call"),
            **_quantiles("its arguments", (0.5, 0.99), "arguments"),
        },
    ),
    Facet(
        "retries",
        retries_of,
        {
            "#responses that tell": lambda retries: retries.responses,
            "#after a retry of the gateway": lambda retries: retries.retried,
            "#after its fallback to another model": lambda retries: retries.fell_back,
        },
    ),
    Facet("shedding", None, {}),
    Facet("disturbance", None, {}),
    Facet("adapters", adapter_use_of, {}),
    Facet("contrast", None, {}),
)
