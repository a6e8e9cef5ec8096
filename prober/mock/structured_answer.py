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


def deltas(document: str, tool: str, form: str) -> list[dict[str, Any]]:
    """The deltas of an answer, one per token. tool: name of the tool to call, "" for content; form: `pieces` or another

    vLLM sends the name, then pieces of the arguments. `at-once`: as engines that wait for the complete call; `repeated-name`: as early
    versions of vLLM; `parallel`: two calls whose pieces alternate.
    """
    pieces = [document[at : at + PIECE_CHARS] for at in range(0, len(document), PIECE_CHARS)]
    if not tool:
        return [{"content": piece} for piece in pieces]
    if form == "at-once":
        return [{}] * len(pieces) + [_call(document, tool)]
    if form == "repeated-name":
        return [_call(piece, tool, call_id=f"call_{at}") for at, piece in enumerate(pieces)]
    indices = (0, 1) if form == "parallel" else (0,)
    begins = [_call("", tool, index, f"call_{index}") for index in indices]
    return begins + [_call(piece, "", index) for piece in pieces for index in indices]


def message(document: str, tool: str, form: str) -> dict[str, Any]:
    """Fields of the message of an unstreamed answer."""
    if not tool:
        return {"content": document}
    indices = (0, 1) if form == "parallel" else (0,)
    return {"content": None, "tool_calls": [_call(document, tool, index)["tool_calls"][0] for index in indices]}


def _call(arguments: str, tool: str, index: int = 0, call_id: str = "call_0") -> dict[str, Any]:
    identity = {"id": call_id, "type": "function"} if tool else {}
    name = {"name": tool} if tool else {}
    return {"tool_calls": [{"index": index, **identity, "function": {**name, "arguments": arguments}}]}
