"""Service level objectives: the blocks under `slos`, and the short form of the command line, such as `ttft<500ms:99%`."""

import re
from collections.abc import Sequence
from typing import Self

from pydantic import Field, ValidationError, model_validator

from prober.config.fields import Block, Document, Duration, ExactPercent, Mistakes
from prober.config.problems import explain
from prober.measure.burn_rate_windows import MIN_SLO_WINDOW_S, promql
from prober.measure.objective import SIGNALS, SIGNALS_WITHOUT_THRESHOLD, Signal, Slo

DAY_S = 86_400.0
FORM = "write signal<threshold:objective, such as 'ttft<500ms:99%' or 'success:99%'"
_OBJECTIVE = re.compile(r"\s*(\w+)\s*(?:<=?\s*([^:<]+?))?\s*:\s*(\S.*?)\s*")


class SloSpec(Block):
    """A service level objective without its name."""

    signal: Signal = Field(description="what is judged: " + ", ".join(SIGNALS))
    threshold: Duration | None = Field(
        None, description="good up to here; a bucket bound; not for `success` and `quality`"
    )
    objective: ExactPercent = Field(description="share of events that must be good, above 0% and below 100%")
    window: Duration = Field(30 * DAY_S, description="over which the objective is judged, at least 6d")

    @model_validator(mode="after")
    def _check(self) -> Self:
        with Mistakes() as mistakes:
            if not 0 < self.objective < 1:
                mistakes.add("objective", f"{self.objective * 100}% leaves nothing to judge; use 0% < objective < 100%")
            if self.signal in SIGNALS_WITHOUT_THRESHOLD and self.threshold is not None:
                mistakes.add("threshold", f"`{self.signal}` has no threshold; remove it")
            elif self.signal not in SIGNALS_WITHOUT_THRESHOLD and not self.threshold:
                mistakes.add("threshold", f"needed for signal `{self.signal}`: a duration above 0, such as 500ms")
            if self.window < MIN_SLO_WINDOW_S:
                mistakes.add(
                    "window",
                    f"{promql(self.window)} is too short for its burn-rate windows, which are 5m/1h to 6h/3d of 30d and shrink "
                    f"with it to less than a scrape or two; use at least {promql(MIN_SLO_WINDOW_S)}",
                )
        return self

    def named(self, name: str) -> Slo:
        """The objective under its name."""
        return Slo(name, self.signal, self.threshold, self.objective, self.window)


def objective(text: object) -> SloSpec | None:
    """An objective in one line; None if it has another form, which FORM shows. Raises ValidationError."""
    match = _OBJECTIVE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        return None
    block = {"signal": match[1], "threshold": match[2], "objective": match[3]}
    return SloSpec.model_validate(block, context=Document((), {}, str))


def named(objectives: Sequence[SloSpec]) -> dict[SloSpec, Slo]:
    """Objectives under unique names: the signal, with a number if it is taken."""
    names: dict[SloSpec, Slo] = {}
    for spec in dict.fromkeys(objectives):
        same = sum(other.signal == spec.signal for other in names)
        names[spec] = spec.named(f"{spec.signal}-{same + 1}" if same else spec.signal)
    return names


def parse_objectives(texts: Sequence[str]) -> tuple[Slo, ...]:
    """Objectives of the option `--slo`. Raises ValueError."""
    specs: list[SloSpec] = []
    for text in texts:
        try:
            spec = objective(text)
        except ValidationError as error:
            why = "; ".join(explain(error, SloSpec, {}).values())
            raise ValueError(f"--slo {text!r}: {why}") from None
        if spec is None:
            raise ValueError(f"--slo {text!r}: {FORM}")
        specs.append(spec)
    return tuple(named(specs).values())
