"""The file of a workload matrix: its rows, or all errors at once."""

import re
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from prober.config import units
from prober.config.document import BadYaml, parse
from prober.config.fields import Count, Document, Duration, Items, Mistakes, Rate, mistake
from prober.config.load import ConfigError
from prober.config.problems import Problems, below, explain, no_such
from prober.config.slos import FORM, SloSpec, named, objective
from prober.config.target import Timeouts, threshold_problem
from prober.config.workloads import Length, Shape
from prober.measure.objective import Slo
from prober.workload.shapes import LengthDistribution
from prober.workload.workloads import Workload

MAX_CONCURRENCY = 2_000
MINIMAL = (
    "the least that works is `rows: [{name: a, prompt_tokens: 256, output_tokens: 64, rate: 2/s, requests: 400, "
    "accept: ['ttft<500ms:99%']}]`"
)


def _name(text: str) -> str:
    if not re.fullmatch(r"[\w.-]{1,100}", text):
        raise mistake(f"{text!r} cannot be a name; use up to 100 letters, digits, '_', '.' and '-'")
    return text


def _objective(text: object, info: ValidationInfo) -> Slo:
    if isinstance(text, Slo):
        return text
    try:
        spec = objective(text)
    except ValidationError as error:
        raise mistake("; ".join(explain(error, SloSpec, {}).values())) from None
    if spec is None or spec.signal == "quality":
        why = "judges golden prompts, which a row has not" if spec else "is no objective"
        raise mistake(f"{units.shortened(text)} {why}; {FORM}")
    slo = spec.named(spec.signal)
    if problem := threshold_problem(slo, Timeouts()):
        raise mistake(problem)
    return slo


class Row(Shape):
    """A shape of request, how it is sent, and the objectives that it must meet.

    rate: of an open loop, or concurrency: requests that a closed loop keeps in flight; the other one is None
    requests: how many, or duration: for how long; the other one is None
    accept: all of them must hold; no two different objectives of a file have the same name
    """

    name: Annotated[str, AfterValidator(_name)]
    prompt_tokens: Length | None = Field(None, validate_default=True)
    output_tokens: Length | None = Field(None, validate_default=True)
    rate: Rate | None = None
    concurrency: Count | None = None
    requests: Count | None = None
    duration: Duration | None = None
    accept: Items[Annotated[Slo, PlainValidator(_objective)]] = Field((), validate_default=True)
    hypothesis: str = ""

    @field_validator("prompt_tokens", "output_tokens")
    @classmethod
    def _check_length(cls, length: LengthDistribution | None) -> LengthDistribution:
        if length is None:
            raise mistake("needed: a number of tokens or a distribution")
        return length

    @field_validator("concurrency")
    @classmethod
    def _check_concurrency(cls, concurrency: int) -> int:
        if not 1 <= concurrency <= MAX_CONCURRENCY:
            raise mistake(f"{concurrency} in flight cannot be kept; use 1 to {MAX_CONCURRENCY:,}")
        return concurrency

    @field_validator("requests", "duration")
    @classmethod
    def _check_amount(cls, amount: float) -> float:
        if amount <= 0:
            raise mistake(f"{amount:g} shows nothing; send more, such as 400 requests, or for 30s")
        return amount

    @field_validator("accept")
    @classmethod
    def _check_accept(cls, accept: tuple[Slo, ...]) -> tuple[Slo, ...]:
        if not accept:
            raise mistake("needed: a list of what must hold, such as ['ttft<500ms:99%', 'success:99%']")
        return accept

    @model_validator(mode="after")
    def _check(self) -> Self:
        with Mistakes() as mistakes:
            self._check_one_of("rate", "concurrency", "an open loop has a rate, a closed one a concurrency", mistakes)
            self._check_one_of("requests", "duration", "how many, or for how long", mistakes)
        return self

    def _check_one_of(self, one: str, other: str, why: str, mistakes: Mistakes) -> None:
        are_set = [getattr(self, key) is not None for key in (one, other)]
        if all(are_set):
            mistakes.add("", f"has `{one}` and `{other}`; keep one of them: {why}")
        elif not any(are_set):
            mistakes.add("", f"needs `{one}` or `{other}`: {why}")

    @property
    def workload(self) -> Workload:
        """The workload of the row."""
        return self.named_workload(self.name)

    @property
    def closed(self) -> bool:
        """Whether a request waits for the answer to another one."""
        return self.concurrency is not None


def load_rows(text: str, *, source: str) -> tuple[Row, ...]:
    """Rows of a file, in their order. source: name of the text in messages. Raises ConfigError with all errors."""
    try:
        raw = parse(text)
    except BadYaml as problem:
        raise ConfigError(f"{source}: {problem}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{source}: not a mapping; {MINIMAL}")
    problems = Problems(source)
    for key in raw:
        if key != "rows":
            problems.add("", no_such("key", str(key), ["rows"]))
    listed = raw.get("rows")
    if not isinstance(listed, list) or not listed:
        problems.add("rows", f"needed: a list of rows; {MINIMAL}")
        listed = []
    rows = [row for index, value in enumerate(listed) if (row := _row(index, value, problems)) is not None]
    _check_names(listed, problems)
    if problems.lines:
        raise ConfigError("\n".join(problems.lines))
    names = named([_unnamed(slo) for row in rows for slo in row.accept])
    return tuple(
        row.model_copy(update={"accept": tuple(dict.fromkeys(names[_unnamed(slo)] for slo in row.accept))})
        for row in rows
    )


def _row(index: int, raw: Any, problems: Problems) -> Row | None:
    try:
        return Row.model_validate(raw, context=Document((), {}, str))
    except ValidationError as error:
        for key, message in explain(error, Row, raw).items():
            problems.add(below(f"rows[{index}]", key), message)
        return None


def _check_names(listed: list[Any], problems: Problems) -> None:
    places: dict[str, int] = {}
    for index, raw in enumerate(listed):
        name = raw.get("name") if isinstance(raw, dict) else None
        if isinstance(name, str) and places.setdefault(name, index) != index:
            problems.add(
                f"rows[{index}].name", f"rows[{places[name]}] is called {name!r} too; give each a name of its own"
            )


def _unnamed(slo: Slo) -> SloSpec:
    return SloSpec(signal=slo.signal, threshold=slo.threshold_s, objective=slo.objective, window=slo.window_s)
