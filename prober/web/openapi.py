"""An OpenAPI 3.1 document from declared operations. Schemas are generated from the types of the answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

Json = dict[str, Any]
Method = Literal["GET", "POST", "PUT", "DELETE"]
TEXT = "text/plain"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the query or in the path. schema: JSON Schema of its value."""

    name: str
    text: str
    place: Literal["query", "path"] = "query"
    required: bool = False
    schema: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """A response. data: type of `data` in the envelope; body: schema of a body without envelope; neither: a sentence as text."""

    status: int
    text: str
    data: Any = None
    body: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation. name: of the handler, and the operation's id; writes: only with --web.enable-admin-api."""

    method: Method
    path: str
    name: str
    text: str
    replies: Sequence[Reply]
    parameters: Sequence[Parameter] = ()
    writes: bool = False


def document(operations: Sequence[Operation], description: str, version: str) -> Json:
    """The document as JSON values."""
    types = {repr(reply.data): reply.data for operation in operations for reply in operation.replies if reply.data}
    references, definitions = TypeAdapter.json_schemas(
        [(name, "serialization", TypeAdapter(kind)) for name, kind in types.items()],
        ref_template="#/components/schemas/{model}",
    )
    schemas = {name: references[name, "serialization"] for name in types}
    paths: dict[str, Json] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "llm-slo-prober", "description": description, "version": version},
        "servers": [{"url": "../..", "description": "relative to this document, so that any prefix is kept"}],
        "paths": paths,
        "components": {"schemas": definitions.get("$defs", {})},
    }


def _operation(operation: Operation, schemas: Mapping[str, Json]) -> Json:
    parameters = [
        {
            "name": parameter.name,
            "in": parameter.place,
            "description": parameter.text,
            "required": parameter.required or parameter.place == "path",
            "schema": dict(parameter.schema or {"type": "string"}),
        }
        for parameter in operation.parameters
    ]
    return {
        "operationId": operation.name,
        "summary": operation.text,
        "tags": ["write" if operation.writes else "read"],
        "responses": {str(reply.status): _reply(reply, schemas) for reply in operation.replies},
        **({"parameters": parameters} if parameters else {}),
    }


def _reply(reply: Reply, schemas: Mapping[str, Json]) -> Json:
    if reply.data is not None:
        envelope = {
            "type": "object",
            "properties": {"status": {"const": "success"}, "data": schemas[repr(reply.data)]},
            "required": ["status", "data"],
        }
        content: Json = {"application/json": {"schema": envelope}}
    elif reply.body is not None:
        content = {"application/json": {"schema": dict(reply.body)}}
    elif reply.status < 300:
        return {"description": reply.text}
    else:
        content = {TEXT: {"schema": {"type": "string"}}}
    return {"description": reply.text, "content": content}
