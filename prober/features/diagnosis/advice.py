"""Actions against slowness and failure, and the engines' flags for them.

The flags are from the engines' documentation of server arguments; if a flag is uncertain, the advice names none. Engines
that pass flags on to another engine (Dynamo, NIM, Ray) have none. TensorRT-LLM's names with a dot or without dashes are keys of its
YAML options.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

Lever = Literal[
    "sequences",
    "batched_tokens",
    "kv_memory",
    "prefix_cache",
    "chunked_prefill",
    "kv_type",
    "speculate",
    "quantise",
    "tensor_parallel",
    "context",
]


class Advice(NamedTuple):
    """An action. trades: its cost; lever: key of `KNOBS`; knob: the engine's flag for it, if known"""

    do: str
    trades: str
    lever: Lever | None = None
    knob: str | None = None


LOAD_LIMIT = Advice("raise the limit, or send fewer requests", "load")
REPLICAS = Advice("add replicas", "cost")
WAIT = Advice("wait; if it restarts again and again, read its log", "nothing")
WAKE = Advice("wake it (vLLM: POST /wake_up), or pause its target while it sleeps", "memory of the GPU")
NEXT_SERVER = Advice("make sure that another server takes over", "nothing")
REQUEST_IDS = Advice("look up the failed probes by their request id in the logs", "nothing")
CACHE_MEMORY = Advice("give the KV cache more memory", "less memory for activations", "kv_memory")
CACHE_TYPE = Advice("store the KV cache in 8 bits", "some accuracy", "kv_type")
FEWER_SEQUENCES = Advice("run fewer sequences at a time", "requests wait instead, and throughput", "sequences")
MORE_SEQUENCES = Advice("run more sequences at a time", "slower decoding of each", "sequences")
SHORT_CONTEXT = Advice("limit the context length", "long requests are refused", "context")
QUANTISE = Advice("quantise the weights, which also frees memory for the cache", "some accuracy", "quantise")
MORE_GPUS = Advice("use more GPUs (tensor parallelism)", "cost", "tensor_parallel")
PREFIX_CACHE = Advice("enable the prefix cache", "nothing on most models", "prefix_cache")
STABLE_PREFIX = Advice("move changing text (time, user) away from the beginning of prompts", "work on the application")
SHORT_PROMPTS = Advice("shorten prompts, or share their beginning", "work on the application", "prefix_cache")
ROUTING = Advice("route requests with equal prefixes to the same replica", "uneven load")
CHUNKED_PREFILL = Advice("split long prompts (chunked prefill)", "their own first token is later", "chunked_prefill")
LARGER_STEPS = Advice("process more prompt tokens per step", "decoding of others stalls longer", "batched_tokens")
DISAGGREGATE = Advice("disaggregate: prefill on separate GPUs", "more GPUs, and transfer of the cache")
TRANSPORT = Advice(
    "check that the KV transfer uses RDMA or NVLink, not TCP, and that its links are not shared", "nothing"
)
TOGETHER = Advice(
    "prefill short prompts where they are decoded, and place both engines close together", "less isolation"
)
POOLS = Advice("separate pools: long and short, interactive and batch", "each pool is less used")
SHAPING = Advice("shape the load: limit or delay requests that can wait", "some requests are refused or later")
COOLING = Advice("cool and power the GPU sufficiently, and remove other processes from it", "nothing")
ENGINE_CPU = Advice("give the engine's host process its own CPU and memory; use CUDA graphs", "cores, memory")
OLD_VERSION = Advice("go back to the previous engine, driver or kernels", "their fixes")
SPECULATE = Advice("use speculative decoding", "throughput at high load", "speculate")
GATEWAY = Advice("check the gateway's queue, buffering and TLS; bypass it for streams", "its features")
NEARER = Advice("serve nearer to the users, and keep connections open", "more locations")

KNOBS: Mapping[str, Mapping[Lever, str]] = {
    "vllm": {
        "sequences": "--max-num-seqs",
        "batched_tokens": "--max-num-batched-tokens",
        "kv_memory": "--gpu-memory-utilization",
        "prefix_cache": "--enable-prefix-caching",
        "chunked_prefill": "--enable-chunked-prefill",
        "kv_type": "--kv-cache-dtype",
        "speculate": "--speculative-config",
        "quantise": "--quantization",
        "tensor_parallel": "--tensor-parallel-size",
        "context": "--max-model-len",
    },
    "sglang": {
        "sequences": "--max-running-requests",
        "batched_tokens": "--chunked-prefill-size",
        "kv_memory": "--mem-fraction-static",
        "prefix_cache": "without --disable-radix-cache",
        "chunked_prefill": "--chunked-prefill-size",
        "kv_type": "--kv-cache-dtype",
        "speculate": "--speculative-algorithm",
        "quantise": "--quantization",
        "tensor_parallel": "--tp-size",
        "context": "--context-length",
    },
    "trtllm": {
        "sequences": "--max_batch_size",
        "batched_tokens": "--max_num_tokens",
        "kv_memory": "kv_cache_config.free_gpu_memory_fraction",
        "prefix_cache": "kv_cache_config.enable_block_reuse",
        "chunked_prefill": "enable_chunked_prefill",
        "kv_type": "kv_cache_config.dtype",
        "speculate": "speculative_config",
        "tensor_parallel": "--tp_size",
        "context": "--max_seq_len",
    },
    "tgi": {
        "batched_tokens": "--max-batch-prefill-tokens",
        "kv_memory": "--cuda-memory-fraction",
        "quantise": "--quantize",
        "speculate": "--speculate",
        "tensor_parallel": "--num-shard",
        "context": "--max-total-tokens",
    },
    "llamacpp": {
        "sequences": "--parallel",
        "batched_tokens": "--ubatch-size",
        "kv_memory": "--ctx-size",
        "kv_type": "--cache-type-k, --cache-type-v",
        "context": "--ctx-size",
    },
    "lmdeploy": {
        "sequences": "--max-batch-size",
        "kv_memory": "--cache-max-entry-count",
        "prefix_cache": "--enable-prefix-caching",
        "kv_type": "--quant-policy",
        "tensor_parallel": "--tp",
    },
}


def with_knobs(actions: Iterable[Advice], engine: str | None) -> tuple[Advice, ...]:
    """Add the engine's own flags, where known, to the advice."""
    knobs = KNOBS.get(engine or "", {})
    return tuple(action._replace(knob=knobs.get(action.lever) if action.lever else None) for action in actions)
