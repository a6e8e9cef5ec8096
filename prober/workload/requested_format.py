"""The check of an answer that follows from the fields of its request: tools to call, or a JSON format."""

from collections.abc import Mapping
from typing import Any

from prober.measure.quality import Expectation

# Values of `tool_choice`, or of its `type`, with which the model may answer without a call.
_BY_CHOICE = frozenset({"auto", "none"})


def requested_format(sampling: Mapping[str, Any]) -> Expectation | None:
    """The check of answers to requests with these fields; None if they ask for no format.

    Fields are those of the four APIs: `tools` and `tool_choice`, `response_format` (chat), `text.format` (Responses) and
    `output_config.format` (Messages). Tools that the server runs itself have no calls to check.
    """
    choice = sampling.get("tool_choice", "auto")
    choice = choice.get("type") if isinstance(choice, Mapping) else choice
    if choice != "none" and (schemas := tool_schemas(sampling)):
        return Expectation("tool_call", schemas, is_call_required=choice not in _BY_CHOICE)
    schema = _format_schema(sampling)
    return None if schema is None else Expectation("json_schema", schema)


def tool_schemas(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """JSON Schema of the arguments of each tool, by name; {} for a tool without one."""
    schemas: dict[str, Any] = {}
    tools = sampling.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(name := function.get("name"), str):
            schemas[name] = function.get("parameters") or function.get("input_schema") or {}
    return schemas


def _format_schema(sampling: Mapping[str, Any]) -> Any:
    holders = (sampling, _mapping(sampling.get("text")), _mapping(sampling.get("output_config")))
    for holder, key in zip(holders, ("response_format", "format", "format"), strict=True):
        requested = _mapping(holder.get(key))
        if requested.get("type") == "json_object":
            return {"type": "object"}
        if requested.get("type") == "json_schema":
            return _mapping(requested.get("json_schema", requested)).get("schema") or {}
    return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
