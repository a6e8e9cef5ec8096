"""Upper bound of a model's decode speed on a GPU, set by the memory bandwidth.

A decode step reads every active weight once and the KV cache of every sequence in the batch, so a stream gets at most

    tokens/s ≤ memory bandwidth ÷ (active parameters × bytes per weight + KV bytes per token × tokens of context)

Unknown inputs are never guessed: functions raise UnknownFigure with the reason.

    print(decode_bound_tokens_per_s(decode_model(config), memory_bandwidth("NVIDIA H100 80GB HBM3")))
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# NVML device name → (bytes/s, source). NVIDIA data sheets unless noted. Variants with different memory but the same name are
# not listed.
DATASHEET_BANDWIDTHS: Mapping[str, tuple[float, str]] = {
    "NVIDIA B300 SXM6 AC": (8.0e12, "DGX B300 data sheet: 64 TB/s of 8 GPUs"),
    "NVIDIA B200": (8.0e12, "DGX B200 data sheet: 64 TB/s of 8 GPUs"),
    "NVIDIA GB200": (8.0e12, "GB200 NVL72 data sheet: 576 TB/s of 72 GPUs"),
    "NVIDIA GH200 480GB": (4.0e12, "GH200 data sheet: 96 GB HBM3"),
    "NVIDIA GH200 144G HBM3e": (4.9e12, "GH200 data sheet: 144 GB HBM3e"),
    "NVIDIA H200": (4.8e12, "H200 data sheet: SXM"),
    "NVIDIA H200 NVL": (4.8e12, "H200 data sheet: NVL"),
    "NVIDIA H100 80GB HBM3": (3.35e12, "H100 data sheet: SXM"),
    "NVIDIA H100 NVL": (3.9e12, "H100 data sheet: NVL"),
    "NVIDIA H100 PCIe": (2.0e12, "H100 PCIe data sheet"),
    "NVIDIA A100-SXM4-80GB": (2.039e12, "A100 data sheet: 80 GB SXM"),
    "NVIDIA A100 80GB PCIe": (1.935e12, "A100 data sheet: 80 GB PCIe"),
    "NVIDIA A100-SXM4-40GB": (1.555e12, "A100 data sheet: 40 GB SXM"),
    "NVIDIA A100-PCIE-40GB": (1.555e12, "A100 data sheet: 40 GB PCIe"),
    "NVIDIA A40": (696e9, "A40 data sheet"),
    "NVIDIA A30": (933e9, "A30 data sheet"),
    "NVIDIA A10": (600e9, "A10 data sheet"),
    "NVIDIA A10G": (600e9, "Amazon EC2 G5: no data sheet of NVIDIA's"),
    "NVIDIA L40S": (864e9, "L40S data sheet"),
    "NVIDIA L40": (864e9, "L40 data sheet"),
    "NVIDIA L4": (300e9, "L4 data sheet"),
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": (1.597e12, "RTX PRO 6000 Blackwell Server Edition data sheet"),
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": (1.792e12, "RTX PRO 6000 Blackwell data sheet"),
    "NVIDIA RTX 6000 Ada Generation": (960e9, "RTX 6000 Ada data sheet"),
    "NVIDIA RTX A6000": (768e9, "RTX A6000 data sheet"),
    "NVIDIA GeForce RTX 5090": (1.792e12, "GeForce RTX 5090 specifications: 28 Gbit/s × 512 bit"),
    "NVIDIA GeForce RTX 4090": (1.008e12, "GeForce RTX 4090 specifications: 21 Gbit/s × 384 bit"),
    "NVIDIA GeForce RTX 3090": (936e9, "GeForce RTX 3090 specifications: 19.5 Gbit/s × 384 bit"),
    "Tesla V100S-PCIE-32GB": (1.134e12, "V100 data sheet: V100S"),
    "Tesla V100-SXM2-32GB": (900e9, "V100 data sheet: SXM2"),
    "Tesla V100-SXM2-16GB": (900e9, "V100 data sheet: SXM2"),
    "Tesla V100-PCIE-32GB": (900e9, "V100 data sheet: PCIe"),
    "Tesla V100-PCIE-16GB": (900e9, "V100 data sheet: PCIe"),
    "Tesla T4": (320e9, "T4 data sheet: 320+ GB/s"),
}

# Models with a gated MLP (three matrices). The formulas below count them exactly except norms and biases (less than 0.1%). Other
# architectures (state space, attention of several kinds) must be configured.
DENSE_MODEL_TYPES = frozenset({"llama", "mistral", "qwen2", "qwen3", "phi3"})
LATENT_MODEL_TYPES = frozenset({"deepseek_v2", "deepseek_v3", "kimi_k2"})  # multi-head latent attention
EXPERT_SIZE_KEYS = {
    "mixtral": "intermediate_size",
    "qwen3_moe": "moe_intermediate_size",
}  # config.json key of the size of an expert
_DTYPES_16_BIT = frozenset({"float16", "bfloat16"})


class UnknownFigure(ValueError):
    """A figure that cannot be computed; the message says why, and what to configure."""


@dataclass(frozen=True, slots=True)
class DecodeModel:
    """The data that a decode step reads.

    active_parameters: weights read per token, without embeddings; in a mixture of experts only the experts that a token uses
    kv_bytes_per_token: per token of context, in all layers
    window_tokens: maximum context that is read; None: all of it
    """

    active_parameters: float
    bytes_per_weight: float
    kv_bytes_per_token: float
    window_tokens: int | None = None

    def __post_init__(self) -> None:
        if not (0 < self.active_parameters < math.inf and 0 < self.bytes_per_weight < math.inf):
            raise ValueError(f"{self}: parameters and bytes per weight must be above 0")
        if not 0 <= self.kv_bytes_per_token < math.inf:
            raise ValueError(f"{self}: KV bytes must be 0 or more")


def memory_bandwidth(name: str) -> float:
    """Returns the bytes/s of a GPU by its NVML name, from its data sheet. Raises UnknownFigure."""
    if name in DATASHEET_BANDWIDTHS:
        return DATASHEET_BANDWIDTHS[name][0]
    reason = "a partition has only a share of its GPU's bandwidth" if " MIG " in name else "no data sheet entry"
    raise UnknownFigure(f"the memory bandwidth of {name!r} is unknown ({reason}): configure it")


def decode_model(
    config: Mapping[str, Any] | None,
    *,
    active_parameters: float | None = None,
    bytes_per_weight: float | None = None,
    kv_bytes_per_token: float | None = None,
) -> DecodeModel:
    """Builds the model from a Hugging Face config.json. A configured value takes precedence; None: derived from `config`.

    bytes_per_weight: 2 for 16 bit, 1 for 8 bit, 0.5 plus the group scales for 4 bit

    Raises UnknownFigure if the size of a weight or the architecture would have to be guessed: checkpoints quantised by another method
    than AWQ, GPTQ or FP8, float32 checkpoints (engines load them as 16 bit), unknown model types.
    """
    figures, unknown = list[float](), list[str]()
    for name, configured, derived in (
        ("active parameters", active_parameters, lambda config: float(sum(_active_weights(config)))),
        ("bytes per weight", bytes_per_weight, _bytes_per_weight),
        ("KV bytes per token", kv_bytes_per_token, _kv_bytes_per_token),
    ):
        if not configured and config is None:
            unknown.append(f"no config.json: configure the {name}")
            continue
        try:
            figures.append(configured or derived(config or {}))
        except UnknownFigure as problem:
            unknown.append(str(problem))
    if unknown:
        raise UnknownFigure("; ".join(unknown))
    parameters, weight, kv = figures
    return DecodeModel(parameters, weight, kv, _window_tokens(config or {}))


def decode_bound_tokens_per_s(
    model: DecodeModel,
    bandwidth_bytes_per_s: float,
    *,
    gpus: int = 1,
    context_tokens: float = 0.0,
    sequences: float = 1.0,
) -> float:
    """Returns the maximum tokens/s of one stream.

    gpus: number of GPUs that read their part of the weights in parallel (tensor parallel, not pipeline stages)
    context_tokens: total context of the `sequences` in the batch, because a step reads all of it

    With several sequences a mixture of experts reads more experts than counted here; the result is still an upper bound.
    Speculative decoding can exceed it, because a step yields several tokens. Raises ValueError for impossible inputs.
    """
    if not 0 < bandwidth_bytes_per_s < math.inf or gpus < 1 or not 0 <= context_tokens < math.inf:
        raise ValueError(
            f"bandwidth {bandwidth_bytes_per_s} bytes/s, {gpus} GPUs, {context_tokens} tokens of context: "
            "give a finite bandwidth above 0, 1 GPU or more and a finite context"
        )
    if model.window_tokens is not None:
        context_tokens = min(context_tokens, model.window_tokens * max(1.0, sequences))
    read = model.active_parameters * model.bytes_per_weight + model.kv_bytes_per_token * context_tokens
    return gpus * bandwidth_bytes_per_s / read


def _active_weights(config: Mapping[str, Any]) -> tuple[int, int]:
    """Numbers of active weights: (those that quantisation may shrink, those that it does not: output matrix and routers)."""
    kind = config.get("model_type")
    if kind in LATENT_MODEL_TYPES:
        return _latent_weights(config)
    if kind not in DENSE_MODEL_TYPES and kind not in EXPERT_SIZE_KEYS:
        raise UnknownFigure(f"the active parameters of model type {kind!r} are unknown: configure them")
    if kind == "qwen3_moe" and (config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1):
        raise UnknownFigure("some layers have no experts: configure the active parameters")
    expert = EXPERT_SIZE_KEYS.get(str(kind))
    names = ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", expert or "intermediate_size"]
    if expert:
        names += ["num_experts_per_tok", "num_local_experts" if kind == "mixtral" else "num_experts"]
    hidden, layers, heads, vocabulary, inner, *of_experts = _sizes(config, *names)
    active_experts, experts = of_experts or (1, 0)
    _, kv_heads, head_size = _attention(config)
    per_layer = 2 * hidden * head_size * (heads + kv_heads) + active_experts * 3 * hidden * inner
    return layers * per_layer, vocabulary * hidden + layers * hidden * experts


def _latent_weights(config: Mapping[str, Any]) -> tuple[int, int]:
    """Like `_active_weights`, for multi-head latent attention with shared and routed experts.

    Source: DeepSeek-V2 (arXiv:2405.04434), section 2.1.2 and appendix C; the first layers have no experts.
    """
    if config.get("moe_layer_freq", 1) != 1:
        raise UnknownFigure("some layers between have no experts: configure the active parameters")
    hidden, layers, heads, vocabulary, inner, kv_rank, plain, rotary, value, expert, routed, shared, experts = _sizes(
        config,
        *("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size"),
        *("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
        *("moe_intermediate_size", "num_experts_per_tok", "n_shared_experts", "n_routed_experts"),
    )
    dense_layers, query_rank = config.get("first_k_dense_replace"), config.get("q_lora_rank")
    if type(dense_layers) is not int or not 0 <= dense_layers <= layers:
        raise UnknownFigure("config.json has no valid first_k_dense_replace: configure the model")
    if query_rank is not None and (type(query_rank) is not int or query_rank < 1):
        raise UnknownFigure("config.json has no valid q_lora_rank: configure the model")
    queries = heads * (plain + rotary)
    attention = (
        (query_rank * (hidden + queries) if query_rank else hidden * queries)
        + hidden * (kv_rank + rotary)
        + kv_rank * heads * (plain + value)
        + heads * value * hidden
    )
    expert_layers = layers - dense_layers
    mlp = 3 * hidden * (dense_layers * inner + expert_layers * (routed + shared) * expert)
    return layers * attention + mlp, vocabulary * hidden + expert_layers * hidden * experts


def _attention(config: Mapping[str, Any]) -> tuple[int, int, int]:
    """Returns (layers, KV heads, head size). Defaults: KV heads = heads, head size = hidden size ÷ heads."""
    layers, heads, hidden = _sizes(config, "num_hidden_layers", "num_attention_heads", "hidden_size")
    explicit = {name: config[name] for name in ("num_key_value_heads", "head_dim") if config.get(name) is not None}
    kv_heads, head_size = _sizes(
        {"num_key_value_heads": heads, "head_dim": hidden // heads, **explicit}, "num_key_value_heads", "head_dim"
    )
    return layers, kv_heads, head_size


def _bytes_per_weight(config: Mapping[str, Any]) -> float:
    """Mean bytes per weight over all active weights."""
    dtype = config.get("dtype") or config.get("torch_dtype")
    if dtype not in _DTYPES_16_BIT:
        raise UnknownFigure(f"an engine may load {dtype!r} weights as another type: configure the bytes per weight")
    if not config.get("quantization_config"):
        return 2.0
    quantised = _quantised_bytes(config["quantization_config"])
    shrunk, plain = _active_weights(config)
    return (shrunk * quantised + plain * 2.0) / (shrunk + plain)


def _quantised_bytes(quantisation: Any) -> float:
    """Bytes of a quantised weight, with its share of its group's scales and zero points."""
    unknown = UnknownFigure("how this checkpoint is quantised is unknown: configure the bytes per weight")
    if not isinstance(quantisation, Mapping):
        raise unknown
    method, bits, group = (quantisation.get(name) for name in ("quant_method", "bits", "group_size"))
    if quantisation.get("lm_head") or quantisation.get("modules_to_not_convert") or quantisation.get("dynamic"):
        raise UnknownFigure("not the usual layers are quantised: configure the bytes per weight")
    if method == "fp8":
        return 1.0
    if method not in ("awq", "gptq") or type(bits) is not int or not 2 <= bits <= 8 or type(group) is not int:
        raise unknown
    has_zero_points = quantisation.get("zero_point", True) if method == "awq" else quantisation.get("sym") is False
    of_group = 2 + (bits / 8 if has_zero_points else 0)
    return bits / 8 + (of_group / group if group > 0 else 0)


def _kv_bytes_per_token(config: Mapping[str, Any]) -> float:
    """Bytes of one key and one value, or their latent vector, in all layers and KV heads, over all GPUs together."""
    kind = config.get("model_type")
    if (config.get("dtype") or config.get("torch_dtype")) not in _DTYPES_16_BIT:
        raise UnknownFigure("the KV cache type is unknown: configure it")
    if kind in LATENT_MODEL_TYPES:
        layers, kv_rank, rotary = _sizes(config, "num_hidden_layers", "kv_lora_rank", "qk_rope_head_dim")
        return layers * (kv_rank + rotary) * 2.0
    if kind not in DENSE_MODEL_TYPES and kind not in EXPERT_SIZE_KEYS:
        raise UnknownFigure(f"the KV cache of model type {kind!r} is unknown: configure its bytes")
    layers, kv_heads, head_size = _attention(config)
    return 2 * layers * kv_heads * head_size * 2.0


def _window_tokens(config: Mapping[str, Any]) -> int | None:
    """The sliding window in tokens; None without one. If only some layers have one it is used for all: the bound stays valid."""
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    return window if isinstance(window, int) and window > 0 else None


def _sizes(config: Mapping[str, Any], *names: str) -> tuple[int, ...]:
    """Read the entries `names` of the configuration. Raises UnknownFigure unless each is an integer above 0."""
    sizes = [config.get(name) for name in names]
    invalid = [name for name, size in zip(names, sizes, strict=True) if type(size) is not int or size < 1]
    if invalid:
        raise UnknownFigure(f"config.json has no valid {', '.join(invalid)}: configure the model")
    return tuple(size for size in sizes if size is not None)
