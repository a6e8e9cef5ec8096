"""Converts frozen dataclasses to JSON values and back, by their types. Every field is written and required."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


class Wrong(ValueError):
    """The value does not have the type; the message begins with the key."""


def encoded(value: Any) -> Any:
    """The JSON value: an object for a dataclass, decimal text for a Decimal."""
    if is_dataclass(value):
        return {each.name: encoded(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: encoded(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [encoded(each) for each in value]
    return str(value) if isinstance(value, Decimal) else value


def decoded(kind: Any, value: Any, key: str) -> Any:
    """The value of type `kind` that `encoded` wrote. Raises Wrong with the path of the key."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if is_dataclass(kind):
        return _dataclass(kind, value, key)
    if origin in (Union, UnionType):
        (inner,) = (each for each in arguments if each is not NoneType)
        return None if value is None else decoded(inner, value, key)
    if origin is Literal:
        if value in arguments:
            return value
        raise Wrong(f"{key}: is {value!r}, not one of {', '.join(map(str, arguments))}")
    if origin is tuple:
        return _tuple(arguments, value, key)
    if origin is Mapping:
        inside = _is(dict, value, key)
        return {name: decoded(arguments[1], each, f"{key}.{name}") for name, each in inside.items()}
    return _plain(kind, value, key)


@cache
def _types(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _dataclass(kind: Any, value: Any, key: str) -> Any:
    inside, types = _is(dict, value, key), _types(kind)
    missing = [each.name for each in fields(kind) if each.name not in inside]
    if missing:
        raise Wrong(f"{key}.{missing[0]}: is missing")
    return kind(
        **{each.name: decoded(types[each.name], inside[each.name], f"{key}.{each.name}") for each in fields(kind)}
    )


def _tuple(arguments: tuple[Any, ...], value: Any, key: str) -> tuple[Any, ...]:
    inside = _is(list, value, key)
    if arguments[0] is float and all(type(each) is float for each in inside):
        return tuple(inside)  # millions of them
    kinds = [arguments[0]] * len(inside) if arguments[1:] == (...,) else list(arguments)
    if len(kinds) != len(inside):
        raise Wrong(f"{key}: has {len(inside)} values, not {len(kinds)}")
    return tuple(decoded(kind, each, f"{key}[{i}]") for i, (kind, each) in enumerate(zip(kinds, inside, strict=True)))


def _plain(kind: type, value: Any, key: str) -> Any:
    if kind is Decimal:
        try:
            return Decimal(_is(str, value, key))
        except InvalidOperation:
            raise Wrong(f"{key}: is {_shown(value)}, not a decimal number") from None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return _is(kind, value, key)


def _is(kind: type, value: Any, key: str) -> Any:
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    raise Wrong(f"{key}: is {_shown(value)}, not {_NAMES[kind]}")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "…"


_NAMES: Mapping[type, str] = {
    dict: "an object",
    list: "a list",
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}
