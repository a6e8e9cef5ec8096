"""Kinds of engines that differ in structure, with random parameters, and their split into a half to tune on and a held-out half."""

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TypeVar

from bench.independent.structure import (
    LEAST_BUSY,
    LONGEST,
    POWER_OF_TWO,
    PREFIX_AFFINITY,
    PRIORITY,
    RANDOM_WORKER,
    ROUND_ROBIN,
    SEPARATE,
    SHORTEST_PROMPT,
    UNLIMITED,
    Structure,
)

AnyStructure = TypeVar("AnyStructure", bound=Structure)


def log_uniform(rng: Random, low: float, high: float) -> float:
    """A number whose logarithm is uniform."""
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def machine(rng: Random) -> Structure:
    """A worker of random speed with chunked prefill."""
    return Structure(
        max_batch=rng.choice((48, 64, 128, 256)),
        step_tokens=rng.choice((512, 1_024, 2_048, 4_096)),
        kv_tokens=rng.choice((150_000, 300_000, 600_000)),
        kv_block=rng.choice((1, 16, 16, 64)),
        base_s=log_uniform(rng, 0.006, 0.025),
        sequence_s=log_uniform(rng, 5e-5, 4e-4),
        context_s=log_uniform(rng, 3e-9, 3e-8),
        prompt_s=log_uniform(rng, 2e-5, 1.2e-4),
        attention_s=log_uniform(rng, 1e-10, 1e-9),
        roofline=int(rng.random() < 0.3),
        noise=rng.uniform(0.02, 0.06),
        host_s=log_uniform(rng, 2e-4, 2e-3),
    )


def separate(rng: Random, structure: AnyStructure) -> AnyStructure:
    """Prompts in steps of their own, whole or in chunks that nothing interrupts."""
    return replace(
        structure,
        scheduler=SEPARATE,
        step_tokens=rng.choice((4_096, 8_192, 16_384)),
        chunk_tokens=rng.choice((UNLIMITED, UNLIMITED, 8_192)),
    )


def alternating(rng: Random, structure: AnyStructure) -> AnyStructure:
    """Prompts and decodes in turns, as TGI decides by the ratio of waiting to running, with memory reserved for all outputs."""
    return replace(
        structure,
        scheduler=SEPARATE,
        step_tokens=rng.choice((4_096, 8_192)),
        prefill_ratio=rng.uniform(0.2, 1.2),
        prefill_wait_steps=rng.choice((5, 10, 20)),
        kv_reserve=1.0,
    )


def of_any_scheduler(rng: Random, structure: AnyStructure) -> AnyStructure:
    """The structure with chunked prefill, whole prompts or turns."""
    return rng.choice((lambda _, same: same, separate, alternating))(rng, structure)


def slots(rng: Random, structure: Structure) -> Structure:
    """Few slots, as in llama.cpp."""
    return replace(structure, max_batch=rng.choice((4, 8, 16)), step_tokens=rng.choice((512, 2_048)), counters_at_end=1)


def preempting(rng: Random, structure: Structure) -> Structure:
    """Memory for a few requests only, so that sequences are preempted and computed again."""
    return replace(
        structure, kv_tokens=rng.randrange(16_000, 40_000), kv_watermark=rng.choice((0.0, 0.01)), max_batch=256
    )


def prefix_cache(rng: Random, structure: Structure) -> Structure:
    """A prefix cache that shares the memory with running sequences: the hit rate falls with load."""
    return replace(
        of_any_scheduler(rng, structure), prefix_block=rng.choice((64, 128)), kv_tokens=rng.randrange(24_000, 80_000)
    )


def speculative(rng: Random, structure: Structure) -> Structure:
    """Drafts of several tokens, with an acceptance of its own for each sequence, up to some batch size."""
    return replace(
        structure,
        draft_tokens=rng.choice((2, 3, 5)),
        draft_max_batch=rng.choice((UNLIMITED, UNLIMITED, 12, 24)),
        draft_s=structure.base_s * rng.uniform(0.05, 0.15),
        acceptance=rng.uniform(0.45, 0.8),
        acceptance_spread=rng.uniform(0.05, 0.2),
    )


def round_robin(rng: Random, structure: Structure) -> Structure:
    """Replicas behind a balancer that looks at no load."""
    return replace(
        of_any_scheduler(rng, structure),
        workers=rng.choice((2, 3, 4)),
        balance=rng.choice((ROUND_ROBIN, ROUND_ROBIN, RANDOM_WORKER)),
    )


def least_busy(rng: Random, structure: Structure) -> Structure:
    """Replicas behind a balancer that sees their load, fresh or some time old."""
    return replace(
        of_any_scheduler(rng, structure),
        workers=rng.choice((2, 3, 4)),
        balance=LEAST_BUSY,
        balance_stale_s=rng.choice((0.0, 0.1, 1.0)),
    )


def lockstep_ranks(rng: Random, structure: Structure) -> Structure:
    """Data-parallel ranks that step together."""
    return replace(
        structure,
        workers=rng.choice((2, 4, 8)),
        lockstep=1,
        balance=rng.choice((ROUND_ROBIN, LEAST_BUSY)),
        balance_stale_s=0.1,
        counters_at_end=rng.choice((0, 1)),
    )


def disaggregated(rng: Random, structure: Structure) -> Structure:
    """A pool for prompts and a pool for decodes, with a link between them."""
    prefill = rng.choice((1, 1, 2))
    return replace(
        of_any_scheduler(rng, structure),
        workers=prefill + rng.choice((1, 2)),
        prefill_workers=prefill,
        balance=LEAST_BUSY,
        transfer_s=log_uniform(rng, 0.001, 0.01),
        transfer_token_s=log_uniform(rng, 1e-6, 1e-5),
        first_after_transfer=rng.choice((0, 1)),
    )


def serial_front(rng: Random, structure: Structure) -> Structure:
    """A tokenizer or router that handles requests one at a time, and may send all tokens too."""
    return replace(
        structure,
        front_s=log_uniform(rng, 0.01, 0.06),
        front_token_s=log_uniform(rng, 2e-6, 4e-5),
        front_output_s=rng.choice((0.0, 1e-4, 3e-4)),
        page_front=rng.choice((0, 0, 1)),
    )


def padding(rng: Random, structure: Structure) -> Structure:
    """Steps that cost what the next captured graph or the longest sequence of the batch costs."""
    padded = replace(structure, padding=rng.choice((POWER_OF_TWO, LONGEST)), sequence_s=structure.sequence_s * 2)
    return of_any_scheduler(rng, padded)


def overlap(rng: Random, structure: Structure) -> Structure:
    """Steps that are scheduled during the one before."""
    return replace(
        structure, overlap=1, base_s=structure.base_s * rng.uniform(1, 3), host_s=log_uniform(rng, 0.002, 0.015)
    )


def stalls(rng: Random, structure: Structure) -> Structure:
    """Pauses of the host at nearly regular intervals."""
    every_s = log_uniform(rng, 15, 90)
    return replace(
        of_any_scheduler(rng, structure), stall_every_s=every_s, stall_s=rng.uniform(0.2, 0.6) * every_s**0.5 / 5
    )


def noisy_neighbour(rng: Random, structure: Structure) -> Structure:
    """A speed that wanders."""
    return replace(
        of_any_scheduler(rng, structure), neighbour=rng.uniform(0.06, 0.2), neighbour_tau_s=log_uniform(rng, 10, 90)
    )


def shortest_first(rng: Random, structure: Structure) -> Structure:
    """Short prompts, or a class of requests, go first."""
    if rng.random() < 0.5:
        return replace(structure, order=PRIORITY, priority_share=rng.uniform(0.1, 0.4))
    return replace(structure, order=SHORTEST_PROMPT, aging_tokens_per_s=rng.choice((0.0, 100.0, 1_000.0)))


def autoscaled(rng: Random, structure: Structure) -> Structure:
    """Replicas that come and go with the load: a knee has no meaning."""
    return replace(
        of_any_scheduler(rng, structure),
        max_workers=rng.choice((3, 4)),
        balance=rng.choice((LEAST_BUSY, PREFIX_AFFINITY)),
        scale_period_s=rng.choice((5.0, 15.0)),
        scale_up=rng.uniform(4, 12),
        scale_down=rng.uniform(1, 3),
        scale_start_s=rng.uniform(10, 60),
    )


def chunked(rng: Random, structure: Structure) -> Structure:
    """Chunked prefill, at times with a limit for each prompt."""
    return replace(structure, chunk_tokens=rng.choice((UNLIMITED, 256, 512)))


# Pairs of similar difficulty; the page is that of an engine of the kind.
PAIRS: tuple[tuple[tuple[Callable[[Random, Structure], Structure], str], ...], ...] = (
    ((chunked, "vllm"), (slots, "llama.cpp")),
    ((separate, "sglang"), (alternating, "tgi")),
    ((preempting, "vllm"), (prefix_cache, "vllm")),
    ((speculative, "vllm"), (padding, "vllm")),
    ((round_robin, "vllm"), (least_busy, "vllm")),
    ((lockstep_ranks, "sglang"), (disaggregated, "vllm")),
    ((serial_front, "vllm"), (overlap, "sglang")),
    ((stalls, "vllm"), (noisy_neighbour, "vllm")),
    ((shortest_first, "vllm"), (autoscaled, "vllm")),
)
PAGE_OF_KIND = {draw.__name__: page for pair in PAIRS for draw, page in pair}
_DRAW = {draw.__name__: draw for pair in PAIRS for draw, _ in pair}
KINDS = tuple(_DRAW)
# A fixed coin for each pair puts its first or its second kind into TUNING, the other into HELD_OUT.
_COIN = Random("independent kinds")
TUNING = tuple(pair[0 if _COIN.random() < 0.5 else 1][0].__name__ for pair in PAIRS)
HELD_OUT = tuple(kind for kind in KINDS if kind not in TUNING)


def draw_structure(kind: str, seed: int) -> Structure:
    """The structure of a kind with the parameters of a seed."""
    rng = Random(f"structure {kind} {seed}")
    return _DRAW[kind](rng, machine(rng))
