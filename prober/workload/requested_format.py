"""Derives the check of an answer from the fields of its request: the schemas of its tools, or its format."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from prober.measure.quality import Expectation, expectation_problem

# Values of `tool_choice`, or its `mode` or `type`, that require a call.
_DEMANDING = frozenset({"required", "any", "function", "tool"})
# Constraints by their names in vLLM, SGLang, TensorRT-LLM, LMDeploy, NIM and llama.cpp, without the prefix `guided_`.
_JSON = frozenset({"json", "json_schema", "json_object"})
_REGEX = frozenset({"regex", "regex_schema"})
_CONSTRAINTS = _JSON | _REGEX | {"choice", "grammar", "ebnf", "structural_tag"}
_CLASS = re.compile(r"\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\\\]])*\]", re.DOTALL)  # an escape, or a class with inner ones
_WORD = r"\pL\pM\p{Nd}\p{Pc}"


def requested_format(sampling: Mapping[str, Any]) -> tuple[Expectation | None, str]:
    """Derive the check from request fields: (the check, or None; why a requested format cannot be checked, or "").

    With a tool or a format, answers end when they are complete, so their length cannot be forced. Fields of the four APIs and of
    engines are known, at the top level or in `extra_body` or `nvext`. Calls of tools that the server runs itself are not checked.
    """
    fields = {**sampling, **_mapping(sampling.get("extra_body")), **_mapping(sampling.get("nvext"))}
    asked = next(_formats(fields), None)
    expectation, unchecked = _format_check(*asked, fields) if asked is not None else (None, "")
    schemas, choice = tool_schemas(fields), fields.get("tool_choice")
    if not schemas:
        return expectation, unchecked
    chosen = choice if isinstance(choice, Mapping) else {"type": choice}
    chosen = _mapping(chosen.get("allowed_tools")) or chosen
    mode = chosen.get("mode", chosen.get("type"))
    if mode == "none":
        return expectation or Expectation("tool_call", {}, is_call_required=False), unchecked
    if names := tool_schemas({"tools": chosen.get("tools", [chosen])}):
        schemas = {name: schemas.get(name, {}) for name in names}
    if asked is not None and mode not in _DEMANDING:
        unchecked = unchecked or f"{asked[0]}: answers that call no tool are not checked"
    return Expectation("tool_call", schemas, is_call_required=mode in _DEMANDING), unchecked


def tool_schemas(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """{tool: JSON Schema of its arguments}; {} as the schema of a tool without one."""
    schemas: dict[str, Any] = {}
    tools = sampling.get("tools")
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(name := function.get("name"), str):
            schemas[name] = function.get("parameters") or function.get("input_schema") or {}
    return schemas


def _formats(fields: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yields (place, constraint, value) of each requested format."""
    for place in ("response_format", "output_format", "text.format", "output_config.format"):
        holder, _, key = place.rpartition(".")
        form = _mapping((_mapping(fields.get(holder)) if holder else fields).get(key))
        if (kind := str(form.get("type", "text"))) != "text":
            value = next((form[name] for name in (kind, "schema", "pattern", "value") if name in form), None)
            yield f"{place} {kind}", kind, value
    for place in ("", "structured_outputs", "guided_decoding"):
        for key, value in (_mapping(fields.get(place)) if place else fields).items():
            kind = str(key).removeprefix("guided_")
            if kind in _CONSTRAINTS and value not in (None, False, ""):
                yield f"{place}.{key}".lstrip("."), kind, value


def _format_check(place: str, kind: str, value: Any, fields: Mapping[str, Any]) -> tuple[Expectation | None, str]:
    if kind in _JSON:
        try:
            schema = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            schema = value  # `expectation_problem` reports that it is no schema
        schema = _mapping(schema).get("schema", schema)  # OpenAI's has a name next to it
        if schema is None or schema is True:
            schema = {"type": "object"} if kind == "json_object" else {}
        return Expectation("json_schema", schema), ""
    if kind == "choice":
        return Expectation("text", [str(text) for text in value] if isinstance(value, list) else [str(value)]), ""
    if kind not in _REGEX:
        return None, f"{place}: answers are not checked against it"
    problem = expectation_problem(Expectation("regex", str(value)))
    if not problem and any(str(key).startswith("stop") for key, stop in fields.items() if stop):
        problem = "`stop` may end an answer before it matches"
    if problem:
        return None, f"{place}: answers are not checked against it: {problem}"
    return Expectation("regex", rf"(?s)\A(?:{_CLASS.sub(_of_all_scripts, str(value))})\z"), ""


def _of_all_scripts(match: re.Match[str]) -> str:
    r"""Extend `\w` and `\d` of a character class to all scripts, as some engines read them; RE2 reads them as ASCII."""
    if match[0].startswith("[^"):
        return match[0]
    classes = {"d": r"\p{Nd}", "w": _WORD if match[0][0] == "[" else f"[{_WORD}]"}
    return re.sub(r"\\(.)", lambda escape: classes.get(escape[1], escape[0]), match[0], flags=re.DOTALL)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
