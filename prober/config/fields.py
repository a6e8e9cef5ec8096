"""Types of the configuration's fields: form of a value in a file, and type in the code.

A field is named like its key, and its type determines the unit: a Duration is in seconds, a Rate per second, a Percent a ratio.
Only an OptionalDuration may be 0, and a Percent is at most 100%.
A variable for such a value has the field's name and unit: `stall_s` for `timeouts.stall`, `max_rate_per_s` for `max_rate`.

A file is validated with a `Document` as context: quantities are text with a unit, names are looked up. Code that builds a model has
no context and passes numbers in these units, and objects instead of names.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from prober.config import units
from prober.config.problems import no_such
from prober.measure.objective import Slo, format_percent
from prober.workload.workloads import Mix, Workload

T = TypeVar("T")


@dataclass(slots=True)
class Document:
    """Context for the validation of a file.

    read: returns the content of a file that the configuration names; raises OSError
    defaults: block `defaults` as written, with REPORTED in place of invalid values
    broken: (list, name) of blocks with errors, such as ("slos", name), whose uses report no further error; name None: all names
    """

    engines: Iterable[str]
    environment: Mapping[str, str]
    read: Callable[[str], str]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    slos: dict[str, Slo] = field(default_factory=dict)
    workloads: dict[str, Workload | Mix] = field(default_factory=dict)
    broken: set[tuple[str | None, object]] = field(default_factory=set)

    def is_broken(self, path: str, name: object) -> bool:
        """True if the block with this name has errors of its own."""
        return not self.broken.isdisjoint({(path, name), (path, None)})


def mistake(message: str, at: str = "") -> PydanticCustomError:
    """Create the error of a validator. at: key below the validated value, such as `probes[0]`; a leading slash starts at the top"""
    return PydanticCustomError("mistake", "{message}", {"message": message, "at": at})


class Mistakes:
    """Collects a validator's errors and raises them together at the end of a `with` statement."""

    def __init__(self) -> None:
        self._errors: list[InitErrorDetails] = []

    def add(self, at: str, message: str) -> None:
        """Add an error at a key below the validated value."""
        self._errors.append({"type": mistake(message, at), "input": None})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None and self._errors:
            raise ValidationError.from_exception_data("", self._errors)


def require(holds: Callable[[Any], object], message: str) -> AfterValidator:
    """Validator of a single value. message: format of the error if `holds` is false; `holds` may also raise ValueError"""

    def validate(value: T) -> T:
        if not holds(value):
            raise mistake(message.format(value))
        return value

    return AfterValidator(validate)


def matching(pattern: str, message: str) -> AfterValidator:
    """Validator of a text that must match a pattern. message: follows the text in the error"""
    return require(re.compile(pattern).fullmatch, f"{{!r}} {message}")


def at_least(least_s: float) -> AfterValidator:
    """Validator for the time between two readings, with a minimum in seconds."""
    return require(lambda s: s >= least_s, f"{{:g}}s is too often; use {least_s:g}s or more")


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """Marks a field that a file has as text.

    text: writes a default as in a file; in_code: code passes text too
    """

    parse: Callable[[object], Any]
    schema: Mapping[str, Any]
    text: Callable[[Any], str]
    in_code: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_before_validator_function(self._validate, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        return dict(self.schema)

    def _validate(self, value: Any, info: Any) -> Any:
        return self.parse(value) if self.in_code or info.context is not None else value


def _pattern(pattern: str, *examples: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern, "examples": list(examples)}


def _optional_duration(value: object) -> float:
    return 0.0 if value == 0 and not isinstance(value, bool) else units.duration(value)


_OPTIONAL = {"anyOf": [{"const": 0}, _pattern(units.DURATION_PATTERN, "20m", "1h")]}
_COUNT = {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": units.COUNT_PATTERN}]}
_PERCENT = _pattern(units.PERCENT_PATTERN, "99%", "99.9%")

Duration = Annotated[
    float,
    Field(gt=0),
    Quantity(units.positive_duration, _pattern(units.DURATION_PATTERN, "500ms", "10s", "6h"), units.duration_text),
]
OptionalDuration = Annotated[float, Quantity(_optional_duration, _OPTIONAL, units.duration_text)]
Rate = Annotated[float, Quantity(units.rate, _pattern(units.RATE_PATTERN, "0.2/s", "12/min"), units.rate_text)]
ExactPercent = Annotated[Decimal, Quantity(units.percent, _PERCENT, format_percent)]
Percent = Annotated[float, Quantity(lambda value: float(units.percent(value)), _PERCENT, format_percent)]
Reuse = Annotated[float, Quantity(units.reuse, {"type": "string", "examples": ["warm", "cold", "30%"]}, format_percent)]
Count = Annotated[int, Quantity(units.count, _COUNT, int)]
_WORKERS = {"anyOf": [{"type": "integer", "minimum": 1, "maximum": units.MAX_WORKERS}, {"const": "auto"}]}
Workers = Annotated[int | None, Quantity(units.worker_count, _WORKERS, lambda value: value or "auto")]
PositiveCount = Annotated[Count, Field(ge=1)]
# PyYAML reads 8e9 as text.
NUMBER: dict[str, Any] = {"type": ["number", "string"], "pattern": r"^[0-9.]"}
Positive = Annotated[float, Field(gt=0, strict=False), WithJsonSchema(NUMBER | {"exclusiveMinimum": 0})]
NotNegative = Annotated[float, Field(ge=0, strict=False), WithJsonSchema(NUMBER | {"minimum": 0})]
Items = Annotated[tuple[T, ...], Field(strict=False)]


# `auto` stands for None.
Auto = Annotated[
    str | None,
    Quantity(
        lambda value: None if value == "auto" else value,
        {"type": "string"},
        lambda value: value or "auto",
        in_code=True,
    ),
]


def _named(kind: str, path: Literal["slos", "workloads"], value: object, info: ValidationInfo) -> object:
    """Look up an SLO or workload by its name in the file. An object, passed by code, is returned unchanged."""
    document: Document | None = info.context
    if isinstance(value, Workload | Mix | Slo):
        return value
    if document is not None and not isinstance(value, list | dict) and document.is_broken(path, value):
        raise PydanticCustomError("reported", "the block has errors of its own")
    known: Mapping[str, object] = getattr(document, path, {})
    if document is None or not isinstance(value, str):
        raise mistake(f"{units.shortened(value)} is not the name of a {kind}; write it as text")
    if value not in known:
        invalid = {str(name) for place, name in document.broken if place == path}
        raise mistake(no_such(kind, value, known.keys() | invalid))
    return known[value]


_NAME = WithJsonSchema({"type": "string"})
NamedWorkload = Annotated[Workload | Mix, PlainValidator(partial(_named, "workload", "workloads")), _NAME]
NamedSlo = Annotated[Slo, PlainValidator(partial(_named, "SLO", "slos")), _NAME]


class Block(BaseModel):
    """A block of the configuration. It is frozen, refuses unknown keys, and treats a key without a value as absent."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, defer_build=True)

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, value: Any) -> Any:
        return present(value)


def present(value: Any) -> Any:
    """A mapping without its keys that lack a value; any other value unchanged."""
    return {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value
