"""Documents with a declared type."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import orjson
import pytest

from prober.results.strict_json import Reader, Unreadable, dumps


@dataclass(frozen=True, slots=True)
class Part:
    """A value with a default."""

    number: float
    text: str = "a"


@dataclass(frozen=True, slots=True)
class Whole:
    """Fields of every kind, all with defaults."""

    part: Part | None = Part(1.0)
    parts: tuple[Part, ...] = (Part(2.0),)
    by_name: Mapping[str, Part] = field(default_factory=lambda: MappingProxyType({"b": Part(3.0)}))
    pair: tuple[int, int] = (1, 2)
    share: Decimal = Decimal("0.99")


READER = Reader(Whole)


def document() -> Any:
    """The JSON values of `Whole`."""
    return orjson.loads(dumps(Whole()))


def test_a_written_value_is_read() -> None:
    """Every field with its type; a Decimal is text, and an unknown field is ignored."""
    assert document()["share"] == "0.99"
    assert READER.read(document() | {"later": 1}, "f") == Whole()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("share",), "share: is missing"),
        (("part", "text"), "part.text: is missing"),
        (("parts", 0, "text"), "parts[0].text: is missing"),
        (("by_name", "b", "text"), "by_name.b.text: is missing"),
    ],
)
def test_a_field_with_a_default_is_required(path: tuple[str | int, ...], text: str) -> None:
    """At any depth: the default is for new values, and says nothing of a file."""
    file = part = document()
    for key in path[:-1]:
        part = part[key]
    del part[path[-1]]
    with pytest.raises(Unreadable) as refusal:
        READER.read(file, "f", "at")
    assert str(refusal.value) == f"f: at.{text}"


@pytest.mark.parametrize(
    ("key", "value"),
    [("pair", [1, "2"]), ("pair", [1, True]), ("pair", [1.0, 2]), ("pair", [1, 2, 3]), ("part", []), ("parts", {})],
)
def test_no_value_is_converted(key: str, value: object) -> None:
    """Text is no number, a number with a fraction no integer, true is not 1, and a pair has two values."""
    with pytest.raises(Unreadable, match=rf"^f: {key}"):
        READER.read(document() | {key: value}, "f")


def test_an_integer_is_a_number() -> None:
    """JSON does not tell 1 from 1.0."""
    found = READER.read(document() | {"part": {"number": 1, "text": "a"}}, "f").part.number
    assert (found, type(found)) == (1.0, float)
