"""Reads result files of this prober and of vLLM's client, and recognises them by their content."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from prober.features.experiments import vllm_file
from prober.results import comparison
from prober.results.comparison import Comparison
from prober.results.result import Result
from prober.results.result_file import KEY, from_object
from prober.results.strict_json import Unreadable

KNOWN = f"llm-slo-prober, {vllm_file.TOOL} --save-result"


def read(text: str, source: str) -> Result:
    """Read the result in a file. Raises Unreadable, which names `source`, the key and the problem."""
    result, *further = read_all(text, source)
    if isinstance(result, Comparison):
        raise Unreadable(f"{source}: is a comparison, not a result; `prober report` shows it")
    if further:
        raise Unreadable(f"{source}: has {1 + len(further)} runs; write the run that is meant to a file of its own")
    return result


def read_all(text: str, source: str) -> list[Result | Comparison]:
    """Read the result or comparison in a file; for vLLM's client, the result of each run. Raises Unreadable."""
    try:
        return _read(text, source)
    except Unreadable:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as problem:
        # Readers expect the types that a tool writes; a file with others is not from that tool.
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
    """Read the objects in a text: one object, a list, or one per line. NaN and Infinity, which tools write, become None."""
    parsed = partial(json.loads, parse_constant=lambda _: None)
    try:
        content = parsed(text)
    except json.JSONDecodeError as problem:
        try:
            content = [parsed(line) for line in text.splitlines() if line.strip()]
        except json.JSONDecodeError:
            remedy = "name a result's JSON file, and write it again if it was cut"
            raise Unreadable(f"{source}: is no JSON: {problem}; {remedy}") from None
    objects = content if isinstance(content, list) else [content]
    if not objects or not all(isinstance(values, Mapping) for values in objects):
        raise Unreadable(f"{source}: holds no JSON object; name a result's file")
    return objects
