"""Flags of the engines for the levers that `mechanisms` advises.

From the engines' documentation of their server arguments. A lever whose flag is not certain is left out; its advice then names no
flag. Engines that pass flags on to another engine (Dynamo, NIM, Ray) have none. Names of TensorRT-LLM with a dot or without dashes
are keys of its YAML options.
"""

from collections.abc import Mapping
from typing import Literal

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
