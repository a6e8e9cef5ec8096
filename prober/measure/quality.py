"""Checks answers to golden prompts against their expectation: a fast wrong answer is a failure."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

MAX_QUOTED_CHARS = 80  # of an answer, in a message


@dataclass(frozen=True, slots=True)
class Expectation:
    """The right answer to a golden prompt.

    kind: `text`: the answer equals `expected`, ignoring white space at both ends; `regex`: `expected` (Python's `re`) matches
    somewhere in the answer; `json_schema`: the answer is a JSON document valid under the schema `expected` (draft 2020-12)
    """

    kind: Literal["text", "regex", "json_schema"]
    expected: str | Mapping[str, Any]


def expectation_problem(expectation: Expectation) -> str:
    """Returns why no answer can be checked against `expectation`, empty if it is valid."""
    expected: Any = expectation.expected
    if expectation.kind == "regex":
        try:
            re.compile(str(expected))
        except re.error as problem:
            return f"{expected!r} is not a regular expression: {problem}"
    elif expectation.kind == "json_schema":
        from jsonschema import Draft202012Validator  # takes 12 MB: imported only where used
        from jsonschema.exceptions import SchemaError

        try:
            Draft202012Validator.check_schema(expected)
        except SchemaError as problem:
            return f"is not a JSON Schema: {problem.message}"
    elif not str(expected).strip():
        return "is empty; give the text of the right answer"
    return ""


def answer_problem(expectation: Expectation, answer: str) -> str:
    """Returns what is wrong with `answer`, empty if it meets `expectation`."""
    expected, stripped = expectation.expected, answer.strip()
    if expectation.kind == "json_schema":
        return _schema_problem(expected, stripped)
    if expectation.kind == "regex":
        return "" if re.search(str(expected), answer) else f"{_quoted(stripped)} does not match {expected!r}"
    return "" if stripped == str(expected).strip() else f"{_quoted(stripped)} is not {expected!r}"


def _schema_problem(schema: Any, answer: str) -> str:
    from jsonschema import Draft202012Validator

    try:
        error = next(Draft202012Validator(schema).iter_errors(json.loads(answer)), None)
        return f"{_quoted(answer)}: at {error.json_path[:MAX_QUOTED_CHARS]}: {error.message[:200]}" if error else ""
    except ValueError as problem:
        return f"{_quoted(answer)} is not JSON: {problem}"
    except RecursionError:
        return f"{_quoted(answer)} is nested too deeply to be checked"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= MAX_QUOTED_CHARS else text[:MAX_QUOTED_CHARS] + "…")
