"""Reads a result's file, ours or another tool's, by what stands in it."""

import json
from collections.abc import Mapping
from typing import Any

from prober.results.foreign import aiperf, genai_perf, llmperf, sglang, vllm
from prober.results.foreign.sheet import Sheet
from prober.results.result import Result
from prober.results.stored import KEY, Unreadable, from_object

KNOWN = "llm-slo-prober, vllm bench serve, sglang.bench_serving, llmperf, genai-perf, aiperf"


def read(text: str, source: str) -> Result:
    """The result in a file. Raises Unreadable, which names `source`, the key and what is wrong."""
    objects = _objects(text, source)
    first = objects[0]
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
    try:
        found = json.loads(text, parse_constant=lambda _: None)
    except ValueError as whole:
        try:
            found = [json.loads(line, parse_constant=lambda _: None) for line in text.splitlines() if line.strip()]
        except ValueError:
            raise Unreadable(f"{source}: is no JSON: {whole}") from None
    objects = found if isinstance(found, list) else [found]
    if not objects or not all(isinstance(each, Mapping) for each in objects):
        raise Unreadable(f"{source}: holds no JSON object; name a result's file")
    return objects
