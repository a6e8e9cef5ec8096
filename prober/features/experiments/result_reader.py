"""Reads result files of this prober and of vLLM's client. The content decides which of them wrote a file."""

import json
from collections.abc import Mapping
from typing import Any

from prober.features.experiments import vllm_file
from prober.results import comparison
from prober.results.comparison import Comparison
from prober.results.result import Result
from prober.results.result_file import KEY, from_object
from prober.results.strict_json import Unreadable

KNOWN = f"llm-slo-prober, {vllm_file.TOOL} --save-result"


def read(text: str, source: str) -> Result:
    """The result in a file. Raises Unreadable, which names `source`, the key and the problem."""
    result, *further = read_all(text, source)
    if isinstance(result, Comparison):
        raise Unreadable(f"{source}: is a comparison, not a result; `prober report` shows it")
    if further:
        raise Unreadable(f"{source}: has {1 + len(further)} runs; write the run that is meant to a file of its own")
    return result


def read_all(text: str, source: str) -> list[Result | Comparison]:
    """The result or the comparison in a file; of vLLM's client, the result of each run. Raises Unreadable."""
    try:
        return _read(text, source)
    except Unreadable:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as problem:
        # Readers expect the types that a tool writes; another type is no file of that tool.
        reason = f"{type(problem).__name__}: {problem}"[:200]
        raise Unreadable(f"{source}: has a value that its tool does not write ({reason}); write it again") from problem


def _read(text: str, source: str) -> list[Result | Comparison]:
    objects = _objects(text, source)
    first = objects[0]
    if (own := first.get(KEY)) is not None:
        is_comparison = isinstance(own, dict) and comparison.INSIDE in own
        return [comparison.from_object(first, source) if is_comparison else from_object(first, source)]
    for values in objects:
        if not vllm_file.recognises(values):
            keys = ", ".join(list(values)[:5]) or "none"
            raise Unreadable(f"{source}: is a file of no tool that is known ({KNOWN}); its first keys: {keys}")
    names = [source] if len(objects) == 1 else [f"{source}, run {number}" for number in range(1, len(objects) + 1)]
    return [vllm_file.read(values, name) for values, name in zip(objects, names, strict=True)]


def _objects(text: str, source: str) -> list[Mapping[str, Any]]:
    """Objects in a text: one object, a list of objects, or one per line. NaN and Infinity, which tools write, are None."""
    if not text.strip():
        raise Unreadable(f"{source}: is empty; name a result's JSON file")
    try:
        content = json.loads(text, parse_constant=lambda _: None)
    except json.JSONDecodeError as problem:
        content = _lines(text, source, problem)
    objects = content if isinstance(content, list) else [content]
    if not objects or not all(isinstance(values, Mapping) for values in objects):
        raise Unreadable(f"{source}: holds no JSON object; name a result's file")
    return objects


def _lines(text: str, source: str, of_text: json.JSONDecodeError) -> list[Any]:
    """The JSON value of each line. of_text: error of parsing the text as one value. Raises Unreadable with the likely reason."""
    values: list[Any] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            values.append(json.loads(line, parse_constant=lambda _: None))
        except json.JSONDecodeError as problem:
            message = f"line {number}: {problem.msg}" if values else str(of_text)
            is_cut = _is_cut(line, problem) if values else _is_cut(text, of_text)
            raise Unreadable(f"{source}: is no JSON: {message}{_reason(text, is_cut=is_cut)}") from None
    return values


WORD = "0123456789.+-Eaeflnrstu"  # of numbers, true, false and null


def _is_cut(text: str, problem: json.JSONDecodeError) -> bool:
    complete = text.rstrip().rstrip(WORD)  # a number or word that was cut is wrong from its begin, or from its point
    return problem.pos >= len(complete) or problem.msg.startswith("Unterminated string")


def _reason(text: str, *, is_cut: bool) -> str:
    head = text.lstrip().partition("\n")[0]
    if head[:1] not in "{[" and "," in head:
        return "; it looks like CSV, which is written and not read: name the JSON file"
    return "; it ends too early, so it was cut while it was written or copied: write it again" if is_cut else ""
