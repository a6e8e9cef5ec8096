"""Healthy services on which trouble can come, with costs of a step from the data sheets of GPUs."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.random import Generator

from bench.independent.causes_service import capacity_per_s
from bench.independent.causes_situation import Gpu, Machine, Route, Situation, Users
from bench.independent.structure import POWER_OF_TWO, RANDOM_WORKER, SEPARATE, UNLIMITED, Structure
from prober.features.diagnosis.window import Hardware
from prober.measure.bandwidth_bound import DecodeModel
from prober.measure.gpu_reading import ThrottleReason

Half = Literal["tuning", "held_out"]


@dataclass(frozen=True, slots=True)
class Wishes:
    """Properties of a healthy service without which a cause could not act, or would act by another one.

    has_pools: prefill and decode on different machines, with a link between them
    reads_much_memory: decode steps are near the bandwidth bound, and long answers fill the KV cache
    max_batch, utilization, kv_room: ranges; utilization is the rate ÷ the rate that the service completes under a backlog,
        kv_room the tokens of the KV cache ÷ those of a full batch
    """

    replicas: int = 1
    has_prefix_cache: bool = False
    has_drafts: bool = False
    has_front: bool = False
    has_pools: bool = False
    reads_much_memory: bool = False
    max_batch: tuple[int, int] = (48, 160)
    utilization: tuple[float, float] = (0.25, 0.5)
    kv_room: tuple[float, float] = (1.3, 4.0)


GPUS = {  # name: (bytes/s, dense 16-bit operations/s, bytes of memory, Hz), from the data sheets
    "NVIDIA H100 80GB HBM3": (3.35e12, 990e12, 80e9, 1.98e9),
    "NVIDIA A100-SXM4-80GB": (2.039e12, 312e12, 80e9, 1.41e9),
    "NVIDIA H200": (4.8e12, 990e12, 141e9, 1.98e9),
    "NVIDIA L40S": (864e9, 362e12, 48e9, 2.52e9),
    "NVIDIA GeForce RTX 4090": (1.008e12, 165e12, 24e9, 2.52e9),
}
MODELS = {  # parameters: KV bytes per token at 16 bit
    8.0e9: 131_072,
    14.8e9: 196_608,
    32.8e9: 262_144,
    70.6e9: 327_680,
}


def _chunked(_: Generator) -> dict[str, object]:
    """Decodes and chunks of prompts in one step, as vLLM does."""
    return {"step_tokens": 2_048}


def _whole_prompt(_: Generator) -> dict[str, object]:
    """Whole prompts in steps of their own, which stall decodes."""
    return {"scheduler": SEPARATE, "step_tokens": 16_384, "chunk_tokens": UNLIMITED}


def _overlapped(rng: Generator) -> dict[str, object]:
    """Chunks, scheduled during the step before, with a slow host."""
    return {"step_tokens": 8_192, "overlap": 1, "host_s": rng.uniform(0.002, 0.005)}


def _turns(rng: Generator) -> dict[str, object]:
    """Prompts and decodes in turns, with memory reserved for all of the output, as TGI does."""
    return {
        "scheduler": SEPARATE,
        "step_tokens": 8_192,
        "prefill_ratio": rng.uniform(0.2, 0.8),
        "prefill_wait_steps": 8,
        "kv_reserve": 1.0,
    }


def _padded(_: Generator) -> dict[str, object]:
    """Chunks, and batches that cost what the next captured graph costs."""
    return {"step_tokens": 4_096, "padding": POWER_OF_TWO}


def _lockstep(_: Generator) -> dict[str, object]:
    """Two data-parallel ranks that step together."""
    return {"workers": 2, "lockstep": 1, "balance": RANDOM_WORKER, "step_tokens": 4_096}


def _small_chunks(_: Generator) -> dict[str, object]:
    """Small steps, and counters that move when a request ends, as llama.cpp has."""
    return {"step_tokens": 512, "counters_at_end": 1}


@dataclass(frozen=True, slots=True)
class EngineKind:
    """A scheduler and the page that it shows."""

    settings: Callable[[Generator], dict[str, object]]
    page: str


KINDS: dict[Half, tuple[EngineKind, ...]] = {
    "tuning": (EngineKind(_chunked, "vllm"), EngineKind(_whole_prompt, "sglang"), EngineKind(_overlapped, "vllm")),
    "held_out": (
        EngineKind(_turns, "tgi"),
        EngineKind(_padded, "vllm"),
        EngineKind(_lockstep, "sglang"),
        EngineKind(_small_chunks, "llama.cpp"),
    ),
}


def healthy_service(kind: EngineKind, wishes: Wishes, rng: Generator) -> tuple[Situation, Hardware]:
    """A service with a random model on random GPUs, and users that load it to the wished utilisation."""
    gpu_name = str(rng.choice(list(GPUS)))
    bandwidth, operations, gpu_bytes, clock_hertz = GPUS[gpu_name]
    weight_bytes = float(rng.choice([1.0, 2.0]))
    parameters = float(rng.choice(list(MODELS)[:2] if wishes.reads_much_memory else list(MODELS)))
    gpus = next(n for n in (1, 2, 4, 8, 16) if n * gpu_bytes > 1.8 * parameters * weight_bytes)
    model = DecodeModel(parameters, weight_bytes, MODELS[parameters])
    efficiency = rng.uniform(0.82, 0.94) if wishes.reads_much_memory else rng.uniform(0.55, 0.85)
    read_per_s = bandwidth * gpus * efficiency
    token_s = 2 * parameters / (operations * gpus * rng.uniform(0.35, 0.55))
    users = _users(wishes, rng)
    length = users.document_tokens + 1.4 * users.prompt_tokens + 1.2 * users.output_tokens
    kv_room = rng.uniform(*wishes.kv_room)
    room_tokens = (0.9 * gpus * gpu_bytes - parameters * weight_bytes) / model.kv_bytes_per_token
    max_batch = max(8, int(min(int(rng.integers(*wishes.max_batch)), room_tokens / length / kv_room)))
    settings: dict[str, object] = {
        "max_batch": max_batch,
        "kv_tokens": int(max(30_000, kv_room * max_batch * length)) // 64 * 64,
        "base_s": parameters * weight_bytes / read_per_s,
        "context_s": model.kv_bytes_per_token / read_per_s,
        "prompt_s": token_s,
        "sequence_s": token_s + 1e-5,
        "attention_s": token_s * 2e-5,
        "roofline": 1,
        "host_s": rng.uniform(0.0003, 0.0015) if wishes.reads_much_memory else rng.uniform(0.0005, 0.003),
        "prefix_block": 64 if wishes.has_prefix_cache or rng.random() < 0.5 else 0,
        **kind.settings(rng),
    }
    if wishes.has_drafts:
        drafts = int(rng.integers(2, 5))
        settings |= {"draft_tokens": drafts, "draft_s": 0.08 * parameters * weight_bytes / read_per_s}
        settings |= {"acceptance": rng.uniform(0.65, 0.85), "acceptance_spread": 0.08}
    if wishes.has_pools:
        settings |= {"workers": 2, "prefill_workers": 1, "lockstep": 0, "first_after_transfer": 1}
        settings |= {"transfer_s": rng.uniform(0.001, 0.01), "transfer_token_s": rng.uniform(1e-6, 1e-5)}
    structure = Structure(**settings)  # type: ignore[arg-type]
    page = None if rng.random() < 0.06 else kind.page
    short = int(rng.choice([192, 256, 384, 512]))
    machine = Machine(
        page=page,
        gpu_name=gpu_name,
        gpus=gpus,
        gpu_bytes=int(gpu_bytes),
        clock_hertz=clock_hertz,
        has_gpu_readings=bool(rng.random() < 0.65),
        has_chunk_usage=bool(rng.random() < 0.4),
        has_early_headers=bool(rng.random() < 0.5),
        has_throttle_reasons=bool(rng.random() < 0.8),
        hides_front=bool(rng.random() < 0.5),
        probe_tokens=(short, short * int(rng.integers(4, 9))),
        shared_share=float(rng.uniform(0.75, 0.95)),
    )
    # Under load many healthy GPUs touch their power limit now and then, at nearly full clocks.
    touches = rng.random() < 0.3
    gpu = Gpu(
        clock_ratio=float(rng.uniform(0.9, 0.99)),
        reasons=frozenset({ThrottleReason.POWER_CAP}) if touches else frozenset(),
        reason_share=float(rng.uniform(0.02, 0.3)) if touches else 0.0,
    )
    situation = Situation(
        machine=machine,
        structures=(structure,) * wishes.replicas,
        gpus=(gpu,) * wishes.replicas,
        users=users,
        route=Route(
            one_way_s=float(np.exp(rng.uniform(np.log(0.0003), np.log(0.01)))), handshakes=int(rng.integers(1, 4))
        ),
    )
    situation = replace_rate(situation, rng.uniform(*wishes.utilization) * capacity_per_s(situation, rng))
    if wishes.has_front:
        front_s = rng.uniform(0.1, 0.3) * wishes.replicas / situation.users.rate_per_s
        page_front = int(rng.random() < 0.67)
        situation = replace_structure(situation, front_s=front_s, page_front=page_front)
    return situation, Hardware(model, bandwidth, gpus)


def _users(wishes: Wishes, rng: Generator) -> Users:
    """Random lengths; short prompts with very long answers where steps are to read much memory and compute few prompts."""
    users = Users(
        rate_per_s=1.0,
        burstiness=float(rng.choice([1.0, 1.0, 2.0, 4.0])),
        prompt_tokens=float(rng.uniform(200, 1000)),
        output_tokens=float(rng.uniform(80, 260)),
    )
    if wishes.reads_much_memory:
        users = replace(users, output_tokens=float(rng.uniform(600, 1500)), prompt_tokens=float(rng.uniform(60, 200)))
    if wishes.has_prefix_cache:
        users = replace(users, documents=int(rng.integers(4, 20)), document_tokens=int(rng.integers(8, 40)) * 64)
    return users


def replace_rate(situation: Situation, rate_per_s: float) -> Situation:
    """The situation with another rate of users' requests."""
    return replace(situation, users=replace(situation.users, rate_per_s=rate_per_s))


def replace_structure(situation: Situation, **changes: float) -> Situation:
    """The situation with parameters of all replicas changed."""
    structures = tuple(replace(structure, **changes) for structure in situation.structures)  # type: ignore[arg-type]
    return replace(situation, structures=structures)
