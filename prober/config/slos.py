"""Service level objectives: the blocks under `slos`, and the short form on the command line, such as `ttft<500ms:99%`."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from prober.config.fields import Block, Document, Duration, ExactPercent, mistake, require
from prober.config.problems import explain
from prober.config.units import shortened
from prober.measure.objective import MIN_SLO_WINDOW_S, SIGNALS, SIGNALS_WITHOUT_THRESHOLD, Signal, Slo, promql

DAY_S = 86_400.0
FORM = "write signal<threshold:objective, such as 'ttft<500ms:99%' or 'success:99%'"
_OBJECTIVE = re.compile(r"\s*(\w+)\s*(?:<=?\s*([^:<]+?))?\s*:\s*(\S.*?)\s*")


_ALL = "{:.0%} leaves nothing to judge; use 0% < objective < 100%"
_TOO_SHORT = f"is too short for its burn-rate alerts, which look back up to 3d; use at least {promql(MIN_SLO_WINDOW_S)}"


class SloSpec(Block):
    """A service level objective without its name."""

    signal: Signal = Field(description="signal to judge: " + ", ".join(SIGNALS))
    threshold: Duration | None = Field(
        None,
        validate_default=True,
        description="an event is good up to this duration, which becomes a bucket bound; not for `success` and `quality`",
    )
    objective: Annotated[ExactPercent, require(lambda share: share < 1, _ALL)] = Field(
        description="share of events that must be good, above 0% and below 100%"
    )
    window: Annotated[Duration, require(lambda s: s >= MIN_SLO_WINDOW_S, _TOO_SHORT)] = Field(
        30 * DAY_S, description="period over which the objective is judged, at least 6d"
    )

    @field_validator("threshold")
    @classmethod
    def _check_threshold(cls, threshold: float | None, info: ValidationInfo) -> float | None:
        signal = info.data.get("signal")
        if signal in SIGNALS_WITHOUT_THRESHOLD and threshold is not None:
            raise mistake(f"`{signal}` has no threshold; remove it")
        if signal is not None and signal not in SIGNALS_WITHOUT_THRESHOLD and not threshold:
            raise mistake(f"needed for signal `{signal}`: a duration above 0, such as 500ms")
        return threshold

    def named(self, name: str) -> Slo:
        """The objective with its name."""
        return Slo(name, self.signal, self.threshold, self.objective, self.window)


def objective(text: object) -> Slo:
    """Parse the short form of an objective, whose name is its signal. Raises ValueError."""
    match = _OBJECTIVE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{shortened(text)} is no objective; {FORM}")
    block = {"signal": match[1], "threshold": match[2], "objective": match[3]}
    try:
        return SloSpec.model_validate(block, context=Document((), {}, str)).named(match[1])
    except ValidationError as error:
        raise ValueError("; ".join(explain(error, SloSpec, {}).values())) from None


def renamed(objectives: Sequence[Slo]) -> dict[Slo, Slo]:
    """Give command-line objectives unique names, {original: renamed}: the signal, with a number if it is taken."""
    names: dict[Slo, Slo] = {}
    for slo in dict.fromkeys(objectives):
        same = sum(other.signal == slo.signal for other in names)
        names[slo] = replace(slo, name=f"{slo.signal}-{same + 1}") if same else slo
    return names


def parse_objectives(texts: Sequence[str]) -> tuple[Slo, ...]:
    """Parse the values of the option `--slo`. Raises ValueError."""
    slos: list[Slo] = []
    for text in texts:
        try:
            slos.append(objective(text))
        except ValueError as problem:
            raise ValueError(f"--slo {text!r}: {problem}") from None
    return tuple(renamed(slos).values())
