"""Error messages for a configuration, from the errors of a pydantic model."""

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from prober.config.units import shortened

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError

    from prober.config.document import Problems

TYPES = {
    "bool_type": "true or false",
    "dict_type": "a mapping; write it as name: value",
    "int_type": "a whole number",
    "model_type": "a mapping of keys; write it as key: value",
    "string_type": "text; write it in quotes",
    "tuple_type": "a list; write it as [a, b]",
}
BOUNDS = {"gt": "more than", "ge": "at least", "le": "at most"}
MISTAKES = ("mistake", "value_error")  # error types of this program; the second is a ValueError
MISSING = "needed, but not given"
_HINT = re.compile(r'did you mean "(.*?)"\?')
MAX_PROBLEMS = 100  # per file; further ones appear once these are fixed
SECRET_KEYS = {"auth", "headers", "proxy_url", "url", "bearer_token_file", "key_file"}  # their values are never shown


REPORTED = object()  # replaces a value whose error is reported where it is written


class ConfigError(ValueError):
    """All errors, one per line: `source:line: path: error; remedy`. file: the file with the errors, if it is YAML"""

    def __init__(self, text: str, file: "Problems | None" = None) -> None:
        super().__init__(text)
        self.file = file


def explain(
    error: "ValidationError", model: "type[BaseModel]", written: object, *, is_secret: bool = False
) -> dict[str, str]:
    """Convert errors to {path below the validated value: message}: `.key`, `[0].key`, or `/key` from the top of the file.

    written: the validated value; is_secret: messages must not repeat any part of it
    """
    messages: dict[str, str] = {}
    for item in error.errors(include_url=False):
        kind, value = item["type"], item.get("input")
        is_short_by_errors = kind == "too_short" and item["ctx"]["actual_length"] < len(value)  # its items are reported
        if kind == "reported" or value is REPORTED or is_short_by_errors:
            continue
        path, message = _explain_one(model, written, item, is_secret=is_secret)
        if kind in MISTAKES and path in messages:
            messages[path] += f"; {message}"  # for other types, all but the first are alternatives of one mistake
        else:
            messages.setdefault(path, message)
        if len(messages) > MAX_PROBLEMS:
            break
    misspelt = [path.rpartition(".")[0] + f".{name}" for path, text in messages.items() for name in _HINT.findall(text)]
    return {path: text for path, text in messages.items() if text != MISSING or path not in misspelt}


def _explain_one(model: "type[BaseModel]", written: object, item: Any, *, is_secret: bool) -> tuple[str, str]:
    kind, value, location = item["type"], item.get("input"), item["loc"]
    is_hidden = is_secret or bool(SECRET_KEYS & set(map(str, location))) or isinstance(value, list | dict)
    keys = list(_keys(model, written, location))
    path = path_of(keys)
    if kind == "extra_forbidden":
        return path, unknown_key(keys[-1], fields_of(model, keys[:-1]))
    if kind == "missing":
        return path, MISSING
    if kind in MISTAKES:
        context = item["ctx"]
        return below(path, context.get("at", "")), context.get("message") or str(context["error"])
    if kind == "literal_error" or kind in TYPES:
        expected = TYPES.get(kind) or f"one of {item['ctx']['expected']}"
        return path, f"must be {expected}" if is_hidden else f"{value!r} is not {expected}"
    if bound := next((bound for bound in BOUNDS if bound in item.get("ctx", ())), None):
        message = f"must be {BOUNDS[bound]} {item['ctx'][bound]:g}"
        return path, message if is_hidden else f"{message}, is {shortened(value)}"
    message = item["msg"][:1].lower() + item["msg"][1:]
    return path, message if is_hidden else f"{value!r}: {message}"


def _keys(model: "type[BaseModel]", written: Any, location: Sequence[int | str]) -> Iterator[int | str]:
    """Keys and indexes in the location of an error, without pydantic's names for branches of a union, which the file lacks."""
    keys: list[int | str] = []
    for part in location:
        try:
            written = written[part]
        except (KeyError, IndexError, TypeError):
            if str(part) not in fields_of(model, keys):
                continue
            written = None
        keys.append(part)
        yield part


def path_of(keys: Iterable[object]) -> str:
    """Path made of keys and indexes, such as `.targets[0].url`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)


def below(path: str, key: str) -> str:
    """Path of a key below another path. A key that starts at the top replaces the path."""
    return key if key.startswith("/") else path + key if not key or key.startswith(("[", ".")) else f"{path}.{key}"


def fields_of(model: "type[BaseModel]", keys: Sequence[int | str]) -> Collection[str]:
    """Known keys of the block at the path `keys` in `model`."""
    for key in keys:
        field_ = model.model_fields.get(str(key))
        model = (_model_of(field_.annotation) if field_ else None) or model
    return model.model_fields


def _model_of(annotation: Any) -> "type[BaseModel] | None":
    from pydantic import BaseModel

    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = getattr(annotation, "__args__", ())
    written = (getattr(item, "json_schema_input_type", None) for item in getattr(annotation, "__metadata__", ()))
    return next(filter(None, map(_model_of, (*inner, *written))), None)


def no_such(kind: str, name: str, known: Iterable[str]) -> str:
    """Error message for an unknown name, with a suggestion."""
    return f'no {kind} "{name}"; {_suggestion(name, known)}'


def unknown_key(key: object, known: Iterable[str]) -> str:
    """Error message for an unknown key, with a suggestion."""
    name = str(key)[:60]
    return f'unknown key "{name}"; {_suggestion(name, known)}'


def _suggestion(name: str, known: Iterable[str]) -> str:
    """Text with the most similar known name, if any, and all known names."""
    listed = sorted(known)
    near = closest(name, listed)
    hint = f'did you mean "{near}"? ' if near else ""
    return f"{hint}known: {', '.join(listed) or 'none'}"


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant; None if no name is similar."""
    return next(iter(difflib.get_close_matches(name, sorted(known), n=1)), None)
