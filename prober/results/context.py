"""Completes the context of a result (facts about engine and hardware) from facts that were read and facts that were configured.

A fact reported by the server or driver overrides a configured one, so that an outdated configuration hides no change. If
they disagree, the result has both.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from prober.measure.bandwidth_bound import DecodeModel, UnknownFigure, memory_bandwidth
from prober.results.facts import ENGINE_VERSION, Context, Fact
from prober.results.result import DecodeLimit, Disagreement, Result

CONFIGURED, THE_ENGINE = "configuration", "the engine"
NO_GPU = "none"  # as `gpu`: the engine runs on the CPU
# Facts that no message asks for if they are unknown.
SEEN = ("gpu_processes", "host_ram_available", "network", "network_round_trip")
OF_GPUS = ("gpu_count", "gpu_memory", "interconnect", "driver", "cuda")
REPLICA_NOTE = "facts from a path of the server are those of the replica that answered"
LABELS = {
    "gpu": "GPU",
    "gpu_count": "GPUs",
    "gpu_memory": "GPU memory",
    "gpu_processes": "processes on the GPU",
    "cuda": "CUDA",
    "cpu": "CPU",
    "host_ram": "host RAM",
    "host_ram_available": "host RAM available",
    "max_batch": "largest batch",
    "prober_host": "prober's host",
    "network": "network of the prober",
    "network_round_trip": "round trip of TCP",
    ENGINE_VERSION: "engine's version",
}
MEMORY_TOLERANCE = 0.1  # a card of 80 GB reports 79.6 GiB
_SAME = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}
_WORD = re.compile(r"[a-z0-9][a-z0-9.+_/-]*")


def with_context(
    result: Result,
    read: Iterable[Fact] = (),
    configured: Mapping[str, str] | None = None,
    *,
    assumed: Iterable[Fact] = (),
    flags: Mapping[str, str] | None = None,
    gpu_price: float | None = None,
    decode_model: DecodeModel | None = None,
    source: str = "GPU readings",
    configured_by: str = CONFIGURED,
) -> Result:
    """Complete a result's context: from facts that were read, else configured, else assumed.

    read: the most trusted facts first
    configured: configured values by name of the fact
    assumed: facts used if no others are known, such as from the files of a model
    flags: configured settings of the engine
    gpu_price: dollars per GPU and hour; None: keep the result's
    source: source of facts that the result has without one; configured_by: source of the configured facts
    """
    known = [
        Fact(name, value, result.context_sources.get(name, THE_ENGINE if name == ENGINE_VERSION else source))
        for name, value in {**asdict(result.context), ENGINE_VERSION: result.target.engine_version}.items()
        if value is not None
    ]
    settled: dict[str, Fact] = {}
    disagreements = {disagreement.name: disagreement for disagreement in result.disagreements}
    facts = [*known, *read, *(Fact(name, value, configured_by) for name, value in (configured or {}).items()), *assumed]
    for name in dict.fromkeys(fact.name for fact in facts):
        settled[name], *disagreeing = _settle([fact for fact in facts if fact.name == name])
        if disagreeing:
            values = tuple((fact.value, fact.source) for fact in (settled[name], *disagreeing))
            disagreements[name] = Disagreement(name, values)
    for name, value in (flags or {}).items():
        reported = result.target.flags.get(name, value)
        if not agree(name, reported, value):
            disagreements[f"flag {name}"] = Disagreement(
                f"flag {name}", ((reported, THE_ENGINE), (value, configured_by))
            )
    version = settled.get(ENGINE_VERSION)
    context = Context(**{name: fact.value for name, fact in settled.items() if name != ENGINE_VERSION})
    is_disputed = "gpu_count" in disagreements
    is_number = re.fullmatch(r"[1-9][0-9]{0,5}", context.gpu_count or "")
    gpus = int(is_number[0]) if is_number and not is_disputed else None
    decode_limit = result.decode_limit
    if decode_model is not None and context.gpu is not None and gpus is not None:
        bytes_per_token = decode_model.active_parameters * decode_model.bytes_per_weight
        with suppress(UnknownFigure):
            decode_limit = DecodeLimit(context.gpu, gpus, memory_bandwidth(context.gpu), bytes_per_token)
    return replace(
        result,
        target=replace(
            result.target,
            engine_version=version.value if version else None,
            flags={**(flags or {}), **result.target.flags},
        ),
        context=context,
        context_sources={name: fact.source for name, fact in settled.items()},
        disagreements=tuple(disagreements.values()),
        prices=replace(result.prices, gpu_per_hour=result.prices.gpu_per_hour if gpu_price is None else gpu_price),
        stages=tuple(replace(stage, gpus=gpus) for stage in result.stages) if gpus or is_disputed else result.stages,
        decode_limit=decode_limit,
    )


def agree(name: str, one: str, other: str) -> bool:
    """True if two texts may state the same fact: one equals or contains the other. Amounts of memory may differ by a tenth."""
    words = [
        [_SAME.get(word, word) for word in _WORD.findall(text.lower().replace("torch.", ""))] for text in (one, other)
    ]
    if words[0] == words[1]:
        return True
    if name in ("gpu_memory", "host_ram"):
        sizes = sorted(size for text in (one, other) if (size := _number(text)) is not None)
        return len(sizes) == 2 and sizes[1] - sizes[0] <= MEMORY_TOLERANCE * sizes[1]
    if name == "gpu_count" or not all(words):
        return False
    return _holds(*words) or _holds(*reversed(words))


def _holds(text: Sequence[str], phrase: Sequence[str]) -> bool:
    """True if `text` contains the words of `phrase` in a row. `0.32` also matches `0.32.0`."""

    def stands_for(word: str, fuller: str) -> bool:
        return word == fuller or fuller.startswith((f"{word}.", f"{word}+", f"{word}-"))

    starts = range(len(text) - len(phrase) + 1)
    return any(all(map(stands_for, phrase, text[start : start + len(phrase)])) for start in starts)


def unknown(result: Result) -> list[str]:
    """Names of the unknown facts, in the order of the context."""
    values = {ENGINE_VERSION: result.target.engine_version, **asdict(result.context)}
    moot = (*SEEN, *OF_GPUS) if result.context.gpu == NO_GPU else SEEN
    return [name for name, value in values.items() if value is None and name not in moot]


def sentences(result: Result) -> Iterator[str]:
    """Yield sentences on facts with contradicting sources, and one that names the unknown facts."""
    for disagreement in result.disagreements:
        yield f"Sources disagree on {label(disagreement.name)}: {disagreement_text(disagreement)}."
    if missing := unknown(result):
        yield f"Not known: {', '.join(map(label, missing))}."


def label(name: str) -> str:
    """Name of a fact for reports."""
    return LABELS.get(name, name.replace("_", " "))


def disagreement_text(disagreement: Disagreement) -> str:
    """All values of a contradiction with their sources, as a phrase."""
    return " but ".join(f"{value} ({source})" for value, source in disagreement.values)


def _settle(facts: list[Fact]) -> list[Fact]:
    """Keep the most detailed of the facts that agree with the first, then one fact per contradicting value."""
    first, *rest = facts
    same = [first, *(fact for fact in rest if agree(first.name, first.value, fact.value))]
    fullest = max(same, key=lambda fact: len(_WORD.findall(fact.value.lower())))
    sources = ", ".join(dict.fromkeys(fact.source for fact in same))
    disagreeing = {fact.value: fact for fact in reversed(rest) if fact not in same}
    return [replace(fullest, source=sources), *disagreeing.values()]


def _number(text: str) -> float | None:
    match = re.search(r"[0-9]+(?:\.[0-9]+)?", text)
    return float(match[0]) if match else None
