"""JSON Schema of the configuration."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from prober.config.configuration import Configuration
from prober.config.fields import Block, Quantity


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the configuration file, for editors. Defaults have the form used in files."""
    schema = Configuration.model_json_schema()
    for model in _models(Block):
        block = schema if model is Configuration else schema["$defs"].get(model.__name__, {})
        block.pop("description", None)  # written for readers of the code
        for name, field in model.model_fields.items():
            key = block.get("properties", {}).get(name, {})
            key.pop("default", None)
            if key and not field.is_required():
                _allow_null(key)
            if (default := default_text(field)) is not None:
                key["default"] = default
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "llm-slo-prober configuration"
    return schema


def _allow_null(key: dict[str, Any]) -> None:
    """Accept a key without a value, which counts as absent."""
    if "type" in key:
        key["type"] = [key["type"], "null"] if isinstance(key["type"], str) else [*key["type"], "null"]
        if "enum" in key:
            key["enum"] = [*key["enum"], None]
    else:
        alternatives = key.pop("anyOf", None) or key.pop("oneOf", None) or [{"$ref": key.pop("$ref")}]
        key["anyOf"] = alternatives + [{"type": "null"}] * ({"type": "null"} not in alternatives)


def _models(model: type[Block]) -> Iterator[type[Block]]:
    for child in model.__subclasses__():
        yield child
        yield from _models(child)


def default_text(field: FieldInfo) -> Any:
    """Default of a field in the form used in files; None for no default, and for a block."""
    extra = field.json_schema_extra
    default = extra["default"] if isinstance(extra, dict) and "default" in extra else field.default
    quantity = next((item for item in field.metadata if isinstance(item, Quantity)), None)
    if default in (PydanticUndefined, "") or isinstance(default, BaseModel | tuple):
        return None
    return quantity.text(default) if quantity is not None else default
