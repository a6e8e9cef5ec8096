"""Reads a result's file, ours or another tool's, by what stands in it."""

import json
from collections.abc import Mapping
from typing import Any

from prober.features.experiments.importers import aiperf, genai_perf, llmperf, sglang, vllm
from prober.features.experiments.importers.sheet import Sheet
from prober.results import comparison
from prober.results.comparison import Comparison
from prober.results.result import Result
from prober.results.result_file import KEY, from_object
from prober.results.strict_json import Unreadable

KNOWN = "llm-slo-prober, vllm bench serve, sglang.bench_serving, llmperf, genai-perf, aiperf"


def read(text: str, source: str) -> Result:
    """The result in a file. Raises Unreadable, which names `source`, the key and what is wrong."""
    found = read_any(text, source)
    if isinstance(found, Comparison):
        raise Unreadable(f"{source}: is a comparison, not a result; `prober report` shows it")
    return found


def read_any(text: str, source: str) -> Result | Comparison:
    """The result or the comparison in a file. Raises Unreadable."""
    try:
        return _read(text, source)
    except Unreadable:
        raise
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as problem:
        # Each key is looked at by what the tool writes there; a file with anything else is somebody's own.
        said = f"{type(problem).__name__}: {problem}"[:200]
        raise Unreadable(f"{source}: has a value that its tool does not write ({said}); write it again") from problem


def _read(text: str, source: str) -> Result | Comparison:
    objects = _objects(text, source)
    first = objects[0]
    if comparison.is_comparison(first):
        return comparison.from_object(first, source)
    if KEY in first:
        return from_object(first, source)
    sheets = [Sheet(source, each) for each in objects]
    if sglang.SGLANG.recognises(first):
        return sglang.read(sheets)
    if llmperf.recognises_row(first):
        return llmperf.rows(sheets)
    if aiperf.recognises_line(first):
        return aiperf.lines(sheets)
    for recognises, reader in (
        (vllm.VLLM.recognises, vllm.read),
        (llmperf.recognises_summary, llmperf.summary),
        (aiperf.recognises, aiperf.read),
        (genai_perf.recognises, genai_perf.read),
    ):
        if recognises(first):
            return reader(sheets[0])
    keys = ", ".join(list(first)[:5]) or "none"
    raise Unreadable(f"{source}: is a file of no tool that is known ({KNOWN}); its first keys: {keys}")


def _objects(text: str, source: str) -> list[Mapping[str, Any]]:
    """Of one JSON object, of a list of them, or of an object a line; NaN and Infinity, which tools write, are absent."""
    if not text.strip():
        raise Unreadable(f"{source}: is empty; name a result's JSON file")
    try:
        found = json.loads(text, parse_constant=lambda _: None)
    except json.JSONDecodeError as whole:
        found = _lines(text, source, whole)
    objects = found if isinstance(found, list) else [found]
    if not objects or not all(isinstance(each, Mapping) for each in objects):
        raise Unreadable(f"{source}: holds no JSON object; name a result's file")
    return objects


def _lines(text: str, source: str, whole: json.JSONDecodeError) -> list[Any]:
    """The value of each line. Raises Unreadable with the likely reason."""
    found: list[Any] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(json.loads(line, parse_constant=lambda _: None))
        except json.JSONDecodeError as problem:
            what = f"line {number}: {problem.msg}" if found else str(whole)
            cut = _is_cut(line, problem) if found else _is_cut(text, whole)
            raise Unreadable(f"{source}: is no JSON: {what}{_reason(text, cut=cut)}") from None
    return found


def _is_cut(text: str, problem: json.JSONDecodeError) -> bool:
    return problem.pos >= len(text.rstrip()) or problem.msg.startswith("Unterminated string")


def _reason(text: str, *, cut: bool) -> str:
    head = text.lstrip().partition("\n")[0]
    if head[:1] not in "{[" and "," in head:
        return "; it looks like CSV, which is written and not read: name the JSON file"
    return "; it ends too early, so it was cut while it was written or copied: write it again" if cut else ""
