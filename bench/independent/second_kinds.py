"""A second set of kinds of engines, made when a model had been tuned on the first, and their split into two halves."""

from collections.abc import Callable
from dataclasses import astuple, replace
from random import Random

from bench.independent.kinds import log_uniform, machine, of_any_scheduler, separate
from bench.independent.structure import LAST_FIRST, LEAST_BUSY, PREFIX_AFFINITY, ROUND_ROBIN, SEPARATE, SecondStructure


def adaptive_budget(rng: Random, structure: SecondStructure) -> SecondStructure:
    """Prompts get the tokens that leave a step its target: decodes slow prompts, and prompts do not slow decodes."""
    least_s = structure.base_s + 48 * structure.sequence_s
    return replace(structure, target_step_s=least_s * rng.uniform(1.5, 3.0), step_tokens=4_096)


def prompt_overhead(rng: Random, structure: SecondStructure) -> SecondStructure:
    """Small chunks, each with a cost of its own beside its tokens."""
    return replace(structure, chunk_tokens=rng.choice((256, 512, 1_024)), request_s=log_uniform(rng, 0.002, 0.02))


def falling_clock(rng: Random, structure: SecondStructure) -> SecondStructure:
    """A GPU that becomes slower when it has been busy."""
    return replace(
        of_any_scheduler(rng, structure), clock_fall=rng.uniform(0.15, 0.5), clock_tau_s=log_uniform(rng, 4, 60)
    )


def collections(rng: Random, structure: SecondStructure) -> SecondStructure:
    """Pauses of the runtime after so many tokens: more often the more load."""
    return replace(
        of_any_scheduler(rng, structure),
        gc_tokens=rng.choice((20_000, 60_000, 200_000)),
        gc_s=log_uniform(rng, 0.1, 0.8),
    )


def watermarks(rng: Random, structure: SecondStructure) -> SecondStructure:
    """Little memory, and admission that stops at a high watermark until a low one is passed."""
    high = rng.uniform(0.7, 0.92)
    return replace(
        structure,
        kv_tokens=rng.randrange(24_000, 60_000),
        admit_high=high,
        admit_low=high * rng.uniform(0.6, 0.85),
        max_batch=256,
    )


def few_connections(rng: Random, structure: SecondStructure) -> SecondStructure:
    """A gateway with a limit of connections, in front of a page that does not count those who wait for one."""
    return replace(
        of_any_scheduler(rng, structure),
        front_connections=rng.choice((6, 12, 24, 40)),
        workers=rng.choice((1, 1, 2)),
        front_s=rng.choice((0.0, 0.002)),
    )


def acceptance_by_batch(rng: Random, structure: SecondStructure) -> SecondStructure:
    """Drafts of which less is accepted the fuller the batch is."""
    return replace(
        structure,
        draft_tokens=rng.choice((3, 4, 6)),
        draft_s=structure.base_s * rng.uniform(0.05, 0.2),
        acceptance=rng.uniform(0.6, 0.85),
        acceptance_spread=0.1,
        acceptance_fall=rng.uniform(0.4, 0.9),
        max_batch=rng.choice((24, 48, 96)),
    )


def unequal_ranks(rng: Random, structure: SecondStructure) -> SecondStructure:
    """Data-parallel ranks, one of them slower; the balancer takes turns or looks at requests, not at their time."""
    return replace(
        structure,
        workers=rng.choice((2, 3, 4)),
        slow_workers=1,
        slow_factor=rng.uniform(1.3, 2.2),
        balance=rng.choice((ROUND_ROBIN, LEAST_BUSY)),
        balance_stale_s=rng.choice((0.0, 0.5)),
    )


def adapters(rng: Random, structure: SecondStructure) -> SecondStructure:
    """Requests for LoRA adapters, of which few are loaded at a time."""
    slots = rng.choice((2, 4, 8))
    return replace(
        structure, adapters=slots * rng.choice((2, 4)), adapter_slots=slots, adapter_s=log_uniform(rng, 0.02, 0.2)
    )


def static_batches(rng: Random, structure: SecondStructure) -> SecondStructure:
    """Workers that take a batch, and serve it to its last token before the next."""
    return replace(
        structure,
        scheduler=SEPARATE,
        static_batch=1,
        step_tokens=32_768,
        max_batch=rng.choice((32, 64, 128)),
        base_s=structure.base_s / 3,
        workers=rng.choice((3, 4, 6)),
        balance=LEAST_BUSY,
    )


def last_come_first(rng: Random, structure: SecondStructure) -> SecondStructure:
    """The latest of the waiting is next."""
    return replace(of_any_scheduler(rng, structure), order=LAST_FIRST, max_batch=rng.choice((16, 32, 64)))


def hot_prefixes(rng: Random, structure: SecondStructure) -> SecondStructure:
    """Workers chosen by prefix, so that popular conversations crowd one, and caches that load evicts."""
    return replace(
        separate(rng, structure) if rng.random() < 0.5 else structure,
        workers=rng.choice((2, 3)),
        balance=PREFIX_AFFINITY,
        prefix_block=rng.choice((64, 128)),
        kv_tokens=rng.randrange(30_000, 90_000),
        speed=rng.uniform(2.0, 3.0),
    )


def worn_gateway(rng: Random, structure: SecondStructure) -> SecondStructure:
    """Several at once: a limit of connections, a clock that falls, and pauses of the runtime."""
    return collections(rng, falling_clock(rng, few_connections(rng, structure)))


def crowded_ranks(rng: Random, structure: SecondStructure) -> SecondStructure:
    """Several at once: unequal ranks, adapters, and a budget that adapts."""
    return adapters(rng, adaptive_budget(rng, unequal_ranks(rng, structure)))


# Pairs of similar difficulty; the page is that of an engine of the kind.
PAIRS: tuple[tuple[tuple[Callable[[Random, SecondStructure], SecondStructure], str], ...], ...] = (
    ((adaptive_budget, "vllm"), (prompt_overhead, "sglang")),
    ((falling_clock, "vllm"), (collections, "vllm")),
    ((watermarks, "sglang"), (few_connections, "vllm")),
    ((acceptance_by_batch, "vllm"), (unequal_ranks, "vllm")),
    ((adapters, "vllm"), (static_batches, "tensorrt_llm")),
    ((last_come_first, "vllm"), (hot_prefixes, "vllm")),
    ((worn_gateway, "vllm"), (crowded_ranks, "vllm")),
)
PAGE_OF_KIND = {draw.__name__: page for pair in PAIRS for draw, page in pair}
_DRAW = {draw.__name__: draw for pair in PAIRS for draw, _ in pair}
KINDS = tuple(_DRAW)
# A fixed coin for each pair puts its first or its second kind into TUNING, the other into HELD_OUT.
_COIN = Random("second kinds")
TUNING = tuple(pair[0 if _COIN.random() < 0.5 else 1][0].__name__ for pair in PAIRS)
HELD_OUT = tuple(kind for kind in KINDS if kind not in TUNING)


def draw_structure(kind: str, seed: int) -> SecondStructure:
    """The structure of a kind with the parameters of a seed."""
    rng = Random(f"structure {kind} {seed}")
    return _DRAW[kind](rng, SecondStructure(*astuple(machine(rng))))
