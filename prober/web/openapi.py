"""An OpenAPI 3.1 document from operations declared once, beside their handlers; schemas come from the answers' own types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

Json = dict[str, Any]
Method = Literal["GET", "POST", "PUT", "DELETE"]
TEXT = "text/plain"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A part of the address. schema: JSON Schema of its value."""

    name: str
    text: str
    place: Literal["query", "path"] = "query"
    required: bool = False
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer. data: type of `data` in the envelope; whole: schema of a body that has none; neither: a sentence as text."""

    status: int
    text: str
    data: Any = None
    whole: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """What can be asked. name: of the handler, and the operation's id; writes: only with --web.enable-admin-api."""

    method: Method
    path: str
    name: str
    text: str
    replies: Sequence[Reply]
    parameters: Sequence[Parameter] = ()
    writes: bool = False


def document(operations: Sequence[Operation], description: str, version: str) -> Json:
    """The whole document, as JSON's values."""
    adapters = {_key(each): TypeAdapter(each) for each in _types(operations)}
    refs, found = TypeAdapter.json_schemas(
        [(key, "serialization", adapter) for key, adapter in adapters.items()],
        ref_template="#/components/schemas/{model}",
    )
    schemas = {key: refs[key, "serialization"] for key in adapters}
    paths: dict[str, Json] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method.lower()] = _operation(each, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "llm-slo-prober", "description": description, "version": version},
        "servers": [{"url": "../..", "description": "relative to this document, so that any prefix is kept"}],
        "paths": paths,
        "components": {"schemas": found.get("$defs", {})},
    }


def _types(operations: Sequence[Operation]) -> list[Any]:
    return [reply.data for each in operations for reply in each.replies if reply.data is not None]


def _key(kind: Any) -> str:
    return repr(kind)


def _operation(each: Operation, schemas: Mapping[str, Json]) -> Json:
    found: Json = {
        "operationId": each.name,
        "summary": each.text,
        "tags": ["write" if each.writes else "read"],
        "responses": {str(reply.status): _reply(reply, schemas) for reply in each.replies},
    }
    if each.parameters:
        found["parameters"] = [_parameter(parameter) for parameter in each.parameters]
    return found


def _parameter(each: Parameter) -> Json:
    schema = dict(each.schema) if each.schema is not None else {"type": "string"}
    return {
        "name": each.name,
        "in": each.place,
        "description": each.text,
        "required": each.required or each.place == "path",
        "schema": schema,
    }


def _reply(reply: Reply, schemas: Mapping[str, Json]) -> Json:
    if reply.data is not None:
        body = {
            "type": "object",
            "properties": {"status": {"const": "success"}, "data": schemas[_key(reply.data)]},
            "required": ["status", "data"],
        }
        return {"description": reply.text, "content": {"application/json": {"schema": body}}}
    if reply.whole is not None:
        return {"description": reply.text, "content": {"application/json": {"schema": dict(reply.whole)}}}
    if reply.status < 300:
        return {"description": reply.text}
    return {"description": reply.text, "content": {TEXT: {"schema": {"type": "string"}}}}
