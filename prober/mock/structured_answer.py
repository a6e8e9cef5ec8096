"""Answers in JSON: content for `response_format`, and arguments of a tool call, as deltas of one token each."""

from typing import Any

PIECE_CHARS = 4  # per token
TEXT = "the of and to"


def example(schema: Any) -> Any:
    """A value that is valid under common JSON Schemas: types, properties, items, enum, const, and the first of several choices."""
    if not isinstance(schema, dict):
        return {}
    if "enum" in schema or "const" in schema:
        return schema["const"] if "const" in schema else schema["enum"][0]
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return example(choices[0])
    kind: Any = schema.get("type", "object")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            properties: dict[str, Any] = schema.get("properties", {})
            return {name: example(properties.get(name)) for name in schema.get("required", properties)}
        case "array":
            return [example(schema.get("items"))] * schema.get("minItems", 1)
        case "string":
            return TEXT[: schema.get("maxLength")].ljust(schema.get("minLength", 0), "o")
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return True
    return None


def spoiled(document: str, fault: str) -> str:
    """The document changed by a fault: `broken_json`, `cut_json` or `empty_json`."""
    match fault:
        case "broken_json":
            return document[:-1] + ",}"
        case "cut_json":
            return document[: len(document) // 2]
        case "empty_json":
            return "{}"
    return document


def deltas(document: str, tool: str) -> list[dict[str, Any]]:
    """The deltas of an answer, one per token: with a `tool` to call, its name, then pieces of the arguments; else content."""
    pieces = [document[at : at + PIECE_CHARS] for at in range(0, len(document), PIECE_CHARS)]
    if not tool:
        return [{"content": piece} for piece in pieces]
    arguments = [{"tool_calls": [{"index": 0, "function": {"arguments": piece}}]} for piece in pieces]
    return [{"tool_calls": [_call(tool, "")]}, *arguments]


def message(document: str, tool: str) -> dict[str, Any]:
    """Fields of the message of an unstreamed answer."""
    return {"content": None, "tool_calls": [_call(tool, document)]} if tool else {"content": document}


def _call(name: str, arguments: str) -> dict[str, Any]:
    return {"index": 0, "id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}
