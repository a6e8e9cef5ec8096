"""An OpenAPI 3.1 document from declared operations. Schemas are generated from the types of the answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

Json = dict[str, Any]
Method = Literal["GET", "POST", "PUT", "DELETE"]


def parameter(
    name: str, text: str, place: Literal["query", "path"] = "query", *, required: bool = False, **schema: Any
) -> Json:
    """A parameter in the query or in the path. schema: keys of the JSON Schema of its value; none: a string"""
    return {
        "name": name,
        "in": place,
        "description": text,
        "required": required or place == "path",
        "schema": schema or {"type": "string"},
    }


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
    parameters: Sequence[Json] = ()
    writes: bool = False


def document(operations: Sequence[Operation], description: str, version: str) -> Json:
    """The document as JSON values."""
    types = {repr(reply.data): reply.data for operation in operations for reply in operation.replies if reply.data}
    references, definitions = TypeAdapter.json_schemas(
        [(name, "serialization", TypeAdapter(kind)) for name, kind in types.items()],
        ref_template="#/components/schemas/{model}",
    )
    paths: dict[str, Json] = {}
    for operation in operations:
        responses: Json = {}
        for reply in operation.replies:
            response = responses[str(reply.status)] = {"description": reply.text}
            if reply.data is not None:
                envelope = {
                    "type": "object",
                    "properties": {
                        "status": {"const": "success"},
                        "data": references[repr(reply.data), "serialization"],
                    },
                    "required": ["status", "data"],
                }
                response["content"] = {"application/json": {"schema": envelope}}
            elif reply.body is not None:
                response["content"] = {"application/json": {"schema": dict(reply.body)}}
            elif reply.status >= 300:
                response["content"] = {"text/plain": {"schema": {"type": "string"}}}
        paths.setdefault(operation.path, {})[operation.method.lower()] = {
            "operationId": operation.name,
            "summary": operation.text,
            "tags": ["write" if operation.writes else "read"],
            "responses": responses,
            **({"parameters": list(operation.parameters)} if operation.parameters else {}),
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "llm-slo-prober", "description": description, "version": version},
        "servers": [{"url": "../..", "description": "relative to this document, so that any prefix is kept"}],
        "paths": paths,
        "components": {"schemas": definitions.get("$defs", {})},
    }
