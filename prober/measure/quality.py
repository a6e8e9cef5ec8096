"""Is the answer to a golden prompt right? A faster answer that is wrong is a failure."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

SHOWN = 80  # characters of an answer that a message quotes


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a right answer is.

    text: the answer is this text, white space at its ends aside; regex: it is found in the answer (Python's `re`);
    json_schema: the answer is a JSON document that the schema (draft 2020-12) allows.
    """

    kind: Literal["text", "regex", "json_schema"]
    wanted: str | Mapping[str, Any]


def flaw(expectation: Expectation) -> str:
    """Why this expectation can never be met or judged; empty if it can."""
    wanted: Any = expectation.wanted
    if expectation.kind == "regex":
        try:
            re.compile(str(wanted))
        except re.error as problem:
            return f"{wanted!r} is not a regular expression: {problem}"
    elif expectation.kind == "json_schema":
        from jsonschema import Draft202012Validator  # 12 MB: for those who use it
        from jsonschema.exceptions import SchemaError

        try:
            Draft202012Validator.check_schema(wanted)
        except SchemaError as problem:
            return f"is not a JSON Schema: {problem.message}"
    elif not str(wanted).strip():
        return "is empty; give the text of the right answer"
    return ""


def mistake(expectation: Expectation, answer: str) -> str:
    """What is wrong with `answer`; empty if it is what was expected."""
    wanted, said = expectation.wanted, answer.strip()
    if expectation.kind == "json_schema":
        return _against_schema(wanted, said)
    if expectation.kind == "regex":
        return "" if re.search(str(wanted), answer) else f"{_quoted(said)} does not match {wanted!r}"
    return "" if said == str(wanted).strip() else f"{_quoted(said)} is not {wanted!r}"


def _against_schema(schema: Any, said: str) -> str:
    from jsonschema import Draft202012Validator

    try:
        found = next(Draft202012Validator(schema).iter_errors(json.loads(said)), None)
        return f"{_quoted(said)}: at {found.json_path[:SHOWN]}: {found.message[:200]}" if found else ""
    except ValueError as problem:
        return f"{_quoted(said)} is not JSON: {problem}"
    except RecursionError:
        return f"{_quoted(said)} is nested too deeply to be judged"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= SHOWN else text[:SHOWN] + "…")
