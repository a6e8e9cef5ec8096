"""JSON Schema and key table of the configuration."""

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from prober.config.configuration import Configuration
from prober.config.fields import Block, Quantity
from prober.config.server import Auth, TlsSpec
from prober.config.target import Overridable, Template

# Blocks whose keys the table has elsewhere.
SHARED: dict[type[BaseModel] | None, str] = {
    Template: "keys of `targets[]` but `url` and `name`",
    Auth: "`bearer_token_file` as in `targets[].auth`",
    TlsSpec: "keys as in `targets[].tls` but `server_name`",
}


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the configuration file, for editors. Defaults are in the form that a file has."""
    schema = Configuration.model_json_schema()
    for model in _models(Block):
        block = schema if model is Configuration else schema["$defs"].get(model.__name__, {})
        block.pop("description", None)  # written for the code
        for name, field in model.model_fields.items():
            key = block.get("properties", {}).get(name, {})
            key.pop("default", None)
            if (default := default_text(field)) is not None:
                key["default"] = default
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "llm-slo-prober configuration"
    return schema


def _models(model: type[Block]) -> Iterator[type[Block]]:
    for child in model.__subclasses__():
        yield child
        yield from _models(child)


def default_text(field: FieldInfo) -> Any:
    """Default of a field in the form that a file has; None if there is none, or if it is a block."""
    extra = field.json_schema_extra
    default = extra["default"] if isinstance(extra, dict) and "default" in extra else field.default
    quantity = next((item for item in field.metadata if isinstance(item, Quantity)), None)
    if default in (PydanticUndefined, "") or isinstance(default, BaseModel | tuple):
        return None
    return quantity.text(default) if quantity is not None else default


def document() -> str:
    """Markdown table of all keys with descriptions and defaults, made from the models."""
    rows = ["| key | meaning | default |", "|---|---|---|"]
    for name, field in Configuration.model_fields.items():
        model, is_list = _nested(field.annotation)
        if model is not None:
            rows += _rows(f"{name}[]" if is_list else name, model)
        elif get_origin(field.annotation) is dict:
            rows += _rows(f"{name}.NAME", get_args(field.annotation)[1])
    return "\n".join(rows) + "\n"


def _rows(prefix: str, model: type[BaseModel]) -> list[str]:
    rows: list[str] = []
    own = sorted(model.model_fields.items(), key=lambda item: item[0] not in model.__annotations__)
    for name, field in own:
        if prefix == "targets[]" and name in Overridable.model_fields:
            continue  # the same keys as `defaults`, documented there
        nested, is_list = _nested(field.annotation)
        if nested in SHARED and not prefix.startswith("targets[]"):
            rows.append(f"| `{prefix}.{name}` | {field.description}: {SHARED[nested]} | {_note(field)} |")
            continue
        rows.append(f"| `{prefix}.{name}` | {field.description} | {_note(field)} |")
        if nested:
            rows += _rows(f"{prefix}.{name}" + ("[]" if is_list else ""), nested)
    return rows


def _note(field: FieldInfo) -> str:
    """The default for the table; `needed` if there is none, empty if it is null or a block."""
    default = "needed" if field.is_required() else default_text(field)
    if default is None:
        return ""
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


def _nested(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """(model of a key's block, None if its value is no block; True if the value is a list of blocks)."""
    kinds = [argument for argument in get_args(annotation) if argument is not NoneType]
    if isinstance(annotation, UnionType) or get_origin(annotation) is Union:
        return _nested(kinds[0]) if len(kinds) == 1 else (None, False)
    if get_origin(annotation) is Annotated:
        return _nested(kinds[0])
    if get_origin(annotation) is tuple:
        return _nested(kinds[0])[0], True
    is_block = isinstance(annotation, type) and issubclass(annotation, BaseModel)
    return (annotation if is_block else None), False
