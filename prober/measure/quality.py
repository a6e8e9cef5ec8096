"""Checks of answers to golden prompts, of tool calls and of formats: a fast wrong answer is a failure.

A check can take seconds, so `probing.answer_checks` runs it in another process. Regular expressions are RE2's, whose
time is linear in the answer.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from prober.measure.tool_calls import AN_OBJECT

Check = Literal["text", "regex", "json_schema", "tool_call"]
MAX_QUOTED_CHARS = 80  # of an answer quoted in a message
# Checked characters of an answer per requested token: three times the usual number.
MIN_CHECKED_CHARS, CHECKED_CHARS_PER_TOKEN = 4 << 10, 12
# Features that RE2 lacks, and their replacements.
_REMEDIES = {
    "(?=": "RE2 has no lookahead; match the text itself, or use json_schema",
    "(?!": "RE2 has no lookahead; match the text itself, or use json_schema",
    "(?<=": "RE2 has no lookbehind; match the text itself",
    "(?<!": "RE2 has no lookbehind; match the text itself",
    "(?>": "RE2 needs no atomic groups, since it never goes back; write (?:…)",
    "(?P=": "RE2 has no backreferences; write the text out",
    "\\Z": "write \\z for the end of the text",
    "\\u": "write the character itself, or \\x{…}",
}


@dataclass(frozen=True, slots=True)
class Expectation:
    """The right answer to a request.

    kind: `text`: the answer equals `expected`, or one of several; `regex`: `expected` (RE2) matches somewhere in the answer; both
    without white space at the ends of the answer. `json_schema`: the answer is a JSON document valid under the schema `expected` (draft
    2020-12). `tool_call`: each call of the answer names a tool in `expected`, with arguments that are an object valid under its schema
    is_call_required: for `tool_call`: an answer without a call is wrong
    """

    kind: Check
    expected: str | Sequence[str] | Mapping[str, Any]
    is_call_required: bool = True


def expectation_problem(expectation: Expectation) -> str:
    """Why no answer can be checked against `expectation`; empty if it is valid."""
    expected: Any = expectation.expected
    if expectation.kind == "regex":
        return _bad_regex(str(expected))
    elif expectation.kind == "json_schema":
        return _bad_schema(expected)
    elif expectation.kind == "tool_call":
        return next((f"{name}: {why}" for name, schema in expected.items() if (why := _bad_schema(schema))), "")
    elif not "".join(expected).strip():
        return "is empty; give the text of the right answer"
    return ""


@lru_cache(maxsize=1_000)
def compiled(regex: str, *, dot_nl: bool = False) -> Any:
    """Compile an RE2 expression. dot_nl: a dot also matches line breaks. Raises ValueError for syntax unknown to RE2."""
    import re2  # takes 2 MB: imported only where used

    options = re2.Options()
    options.log_errors, options.dot_nl = False, dot_nl
    try:
        return re2.compile(regex, options)
    except re2.error as problem:
        why = problem.args[0] if problem.args else b""
        raise ValueError(why.decode("utf-8", "replace") if isinstance(why, bytes) else str(why)) from None


def _bad_regex(regex: str) -> str:
    try:
        compiled(regex)
    except ValueError as problem:
        why = str(problem)
    else:
        return ""
    part = why.rpartition(": ")[2]
    remedy = next((text for start, text in _REMEDIES.items() if regex.startswith(start, regex.find(part))), "")
    if part[:1] == "\\" and part[1:].isdigit():
        remedy = _REMEDIES["(?P="]
    place = f" (character {regex.find(part) + 1})" if part and part in regex else ""
    return f"{regex!r} is not a regular expression of RE2: {why}{place}; {remedy or 'see github.com/google/re2/wiki/Syntax'}"


def _bad_schema(schema: Any) -> str:
    from jsonschema import Draft202012Validator  # takes 12 MB: imported only where used
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as problem:
        return f"is not a JSON Schema: {problem.message}"
    return ""


def answer_problem(expectation: Expectation, answer: str, calls: Sequence[tuple[str, str]] = ()) -> str:
    """The fault of `answer` and `calls`; empty if they meet `expectation`. calls: (tool name, arguments as JSON)"""
    expected: Any = expectation.expected
    stripped = answer.strip()
    if expectation.kind == "tool_call":
        if not calls:
            return f"{_quoted(stripped)} calls no tool" if expectation.is_call_required else ""
        return next((problem for call in calls if (problem := _call_problem(expected, *call))), "")
    if expectation.kind == "json_schema":
        return _schema_problem(expected, stripped)
    if expectation.kind == "regex":
        is_match = any(compiled(expected).search(text) for text in (stripped, answer))
        return "" if is_match else f"{_quoted(stripped)} does not match {expected!r}"
    texts = [expected] if isinstance(expected, str) else expected
    is_right = stripped in (text.strip() for text in texts)
    return "" if is_right else f"{_quoted(stripped)} is not {' or '.join(map(repr, texts))[:200]}"


def _call_problem(schemas: Any, name: str, arguments: str) -> str:
    if name not in schemas:
        allowed = f"which is none of {', '.join(map(repr, schemas))[:200]}" if schemas else "though it may call no tool"
        return f"calls {_quoted(name)}, {allowed}"
    if arguments.startswith(AN_OBJECT):
        return f"arguments of {name}: an object is not JSON text, which the API demands"
    problem = _schema_problem(schemas[name], arguments, is_object=True)
    return f"arguments of {name}: {problem}" if problem else ""


def _schema_problem(schema: Any, answer: str, *, is_object: bool = False) -> str:
    from jsonschema import Draft202012Validator

    try:
        document = json.loads(answer)
        if is_object and not isinstance(document, dict):
            return f"{_quoted(answer)} is no JSON object"
        error = next(Draft202012Validator(schema).iter_errors(document), None)
        return f"{_quoted(answer)}: at {error.json_path[:MAX_QUOTED_CHARS]}: {error.message[:200]}" if error else ""
    except ValueError as problem:
        return f"{_quoted(answer)} is not JSON: {problem}"
    except RecursionError:
        return f"{_quoted(answer)} is nested too deeply to be checked"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= MAX_QUOTED_CHARS else text[:MAX_QUOTED_CHARS] + "…")
