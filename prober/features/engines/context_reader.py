"""Reads facts about an engine from its JSON pages, once before a run.

Every request is bounded in time and size and goes only to the target's own server. Only the facts that the engine's module names are
kept, because the documents may contain secrets. Facts of an unreadable document are unknown. Behind a balancer, the facts are those of
the replica that answered.
"""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import orjson

from prober.features.engines.page_reader import fetch_of, root_of
from prober.features.engines.page_reading import facts
from prober.measure.engine_signals import JsonFact
from prober.measure.engines import CONTEXT_FACTS
from prober.net.scrape import UnreadablePage
from prober.probing.target import Target
from prober.results.facts import Fact

TIMEOUT_S = 2.0  # per document
TOTAL_S = 5.0  # for all documents
MAX_BYTES = 256 << 10
_RANKS = {"tensor_parallel": "TP", "pipeline_parallel": "PP", "data_parallel": "DP"}


async def read_context(target: Target) -> list[Fact]:
    """Read facts about the target's engine, with the path of the document as source. Raises nothing."""
    answers: dict[str, object] = {}
    try:
        async with asyncio.timeout(TOTAL_S):
            if target.identity is None and target.unidentified is None:
                await target.identify()
            if target.identity is not None:
                await _read(target, CONTEXT_FACTS.get(target.identity.dialect.name, ()), answers)
    except TimeoutError:
        pass  # keep the facts that were read in time
    if target.identity is None:
        return []
    context = context_facts(CONTEXT_FACTS.get(target.identity.dialect.name, ()), answers, target.identity.model)
    return [replace(fact, value=target.endpoint.redactor.redact(fact.value)) for fact in context]


def context_facts(wanted: Iterable[JsonFact], answers: Mapping[str, object], model: str) -> list[Fact]:
    """Find the wanted facts. answers: documents by path; model: name of the requested model"""
    found = facts(wanted, answers, model)
    ranks = {label: found.pop(name) for name, label in _RANKS.items() if name in found}
    return [*found.values(), *_parallelism(ranks)]


async def _read(target: Target, wanted: Iterable[JsonFact], answers: dict[str, object]) -> None:
    """Read the documents one after the other. Skip a document if one already read has all its facts."""
    names: dict[str, set[str]] = {}
    for fact in wanted:
        names.setdefault(fact.path, set()).add(fact.name)
    stated: set[str] = set()
    for path, of_path in names.items():
        if of_path <= stated:
            continue
        try:
            fetched = await fetch_of(target, root_of(target) + path, TIMEOUT_S, MAX_BYTES)
            answers[path] = orjson.loads(fetched.body)
        except (UnreadablePage, OSError, ValueError):
            continue  # servers differ in which documents they have
        stated |= of_path


def _parallelism(ranks: Mapping[str, Fact]) -> Iterator[Fact]:
    """Parallelism as text, and the number of GPUs; no number with data parallelism, which engines count in different ways."""
    if not ranks:
        return
    source = next(iter(ranks.values())).source
    yield Fact("parallelism", ", ".join(f"{label} {fact.value}" for label, fact in ranks.items()), source)
    sizes = {label: fact.value for label, fact in ranks.items()}
    if (
        {"TP", "PP"} <= sizes.keys()
        and sizes.get("DP", "1") == "1"
        and sizes["TP"].isdecimal()
        and sizes["PP"].isdecimal()
    ):
        yield Fact("gpu_count", str(int(sizes["TP"]) * int(sizes["PP"])), source)
