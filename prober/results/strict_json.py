"""JSON documents with a declared type: every field is written and required, and values are never converted to another type."""

from collections.abc import Mapping
from decimal import Decimal
from functools import cached_property
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

MAX_SHOWN_CHARS = 40


class Unreadable(ValueError):
    """The document is not valid. The message names the file, the path in it and the mistake."""


class Reader:
    """Reads documents of the type `kind`: a frozen dataclass, a TypedDict or anything else that pydantic knows."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    @cached_property
    def _validator(self) -> SchemaValidator:  # takes about 50 ms; most programs read no document
        return SchemaValidator(_without_defaults(TypeAdapter(self._kind).core_schema))

    def read(self, document: Any, source: str, path: str = "") -> Any:
        """Convert parsed JSON to `kind`. path: place of the value in the file `source`, for messages. Raises Unreadable."""
        try:
            return self._validator.validate_json(orjson.dumps(document), strict=True)
        except ValidationError as problem:
            mistake = problem.errors(include_url=False, include_context=False)[0]
            value, message = repr(mistake["input"]), mistake["msg"]
            shown = value if len(value) <= MAX_SHOWN_CHARS else f"{value[: MAX_SHOWN_CHARS - 1]}…"
            text = f"is {shown}; {message[0].lower()}{message[1:]}" if mistake["type"] != "missing" else "is missing"
            keys = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in mistake["loc"])
            raise Unreadable(f"{source}: {(path + ''.join(keys)).removeprefix('.')}: {text}") from None
        except TypeError as problem:  # raised for larger integers and deeper nesting than any result has
            raise Unreadable(f"{source}: has a value that no result has: {problem}; write the file again") from None


def dumps(value: Any) -> bytes:
    """JSON of dataclasses, mappings and sequences; a Decimal is written as text."""
    return orjson.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _without_defaults(schema: Any) -> Any:
    """Make every field of a pydantic schema required, because a missing field must not silently get the default for new values."""
    if isinstance(schema, dict):
        if schema.get("type") == "default":
            return _without_defaults(schema["schema"])
        return {key: _without_defaults(value) for key, value in schema.items()}
    return [_without_defaults(part) for part in schema] if isinstance(schema, list) else schema
