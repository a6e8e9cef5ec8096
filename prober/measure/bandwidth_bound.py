"""How fast can this GPU decode this model at best? The bound that memory bandwidth sets, and what is measured over it.

A decode step reads every active weight once and the KV cache of every sequence in the batch, so a stream gets at most

    tokens/s ≤ memory bandwidth ÷ (active parameters × bytes per weight + KV bytes per token × tokens of context)

What is not known is refused with the reason, never guessed: a bound from a guessed model explains nothing.

    model = model_of(config)
    bandwidth = memory_bandwidth("NVIDIA H100 80GB HBM3")
    if not isinstance(model, Refused) and not isinstance(bandwidth, Refused):
        print(measured_over_bound(tpot_s=0.009, bound_per_s=bound(model, bandwidth)))
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

# NVML's device name → (bytes/s, where it stands), from NVIDIA's data sheets unless said otherwise. A name stands for one
# kind of memory: variants whose name does not tell them apart are not listed.
DATASHEET: Mapping[str, tuple[float, str]] = {
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

# Models of grouped-query attention and a gated MLP (three matrices), which the formula below counts exactly but for norms and
# biases, less than a thousandth. Others (latent attention, state space, shared experts) need their own: configure those.
DENSE = frozenset({"llama", "mistral", "qwen2", "qwen3", "phi3"})
EXPERTS = {"mixtral": "intermediate_size", "qwen3_moe": "moe_intermediate_size"}  # where the size of one expert stands
_HALF = frozenset({"float16", "bfloat16"})


class Refused(NamedTuple):
    """There is no figure, and why; what would give one."""

    reason: str


@dataclass(frozen=True, slots=True)
class Model:
    """What a decode step reads.

    active_parameters: weights read for one token: of experts those it is sent to, of the embeddings one row, so none
    kv_bytes_per_token: of one token of context, in all layers; window_tokens: context beyond it is not read (None: all is)
    """

    active_parameters: float
    bytes_per_weight: float
    kv_bytes_per_token: float
    window_tokens: int | None = None

    def __post_init__(self) -> None:
        if not (0 < self.active_parameters < math.inf and 0 < self.bytes_per_weight < math.inf):
            raise ValueError(f"{self}: parameters and bytes per weight are above 0")
        if not 0 <= self.kv_bytes_per_token < math.inf:
            raise ValueError(f"{self}: KV bytes are 0 or more")


@dataclass(frozen=True, slots=True)
class Configured:
    """What an operator knows better than the model's config.json; None: take it from there.

    bytes_per_weight: 2 for 16 bit, 1 for 8 bit, 0.5 and the scales of its groups for 4 bit; kv_bytes: of one element
    """

    active_parameters: float | None = None
    bytes_per_weight: float | None = None
    kv_bytes_per_token: float | None = None
    kv_bytes: float | None = None


def memory_bandwidth(name: str, overrides: Mapping[str, float] | None = None) -> float | Refused:
    """Bytes/s of a GPU by the name that NVML gives it; an entry of `overrides` goes first."""
    known = {**{each: figure for each, (figure, _) in DATASHEET.items()}, **(overrides or {})}
    found = known.get(name)
    if found is not None:
        return found
    why = "a partition has a share of its GPU's" if " MIG " in name else "it is in no table here"
    return Refused(f"memory bandwidth of {name!r} is not known ({why}): configure it")


def kv_bytes_per_token(layers: int, kv_heads: int, head_size: int, bytes_each: float) -> float:
    """A key and a value for each head of each layer. Tensor parallelism divides the heads, not the sum."""
    return 2 * layers * kv_heads * head_size * bytes_each


def model_of(config: Mapping[str, Any] | None, configured: Configured | None = None) -> Model | Refused:
    """The model of a config.json as Hugging Face writes it, and of what is configured.

    Refused where a weight's size or the architecture would have to be guessed: quantised checkpoints (which layers are
    quantised is not told), float32 ones (engines load them as 16 bit), unknown kinds of model.
    """
    configured = configured or Configured()
    parts = (
        configured.active_parameters or _active_parameters(config),
        configured.bytes_per_weight or _bytes_per_weight(config),
        configured.kv_bytes_per_token or _kv_bytes_per_token(config, configured.kv_bytes),
    )
    parameters, weight, kv = parts
    if isinstance(parameters, Refused) or isinstance(weight, Refused) or isinstance(kv, Refused):
        return Refused("; ".join(part.reason for part in parts if isinstance(part, Refused)))
    return Model(parameters, weight, kv, _window_tokens(config))


def bound(
    model: Model, bandwidth_bytes_per_s: float, *, gpus: int = 1, context_tokens: float = 0.0, sequences: float = 1.0
) -> float:
    """Tokens/s that one stream gets at most.

    gpus: those that read their part of the weights at the same time (tensor parallelism; a pipeline's stages do not)
    context_tokens: of the `sequences` in the batch together, as a step reads them all. With several of them a mixture of
    experts reads more experts than this counts: it stays a bound. Speculative decoding may pass it, with several tokens a
    step. Raises ValueError for what cannot be.
    """
    if not 0 < bandwidth_bytes_per_s < math.inf or gpus < 1 or not 0 <= context_tokens < math.inf:
        raise ValueError(f"bandwidth {bandwidth_bytes_per_s}, {gpus} GPUs, {context_tokens} tokens: no such machine")
    if model.window_tokens is not None:
        context_tokens = min(context_tokens, model.window_tokens * max(1.0, sequences))
    read = model.active_parameters * model.bytes_per_weight + model.kv_bytes_per_token * context_tokens
    return gpus * bandwidth_bytes_per_s / read


def measured_over_bound(tpot_s: float, bound_per_s: float) -> float:
    """1 is as fast as the memory allows; above it an assumption is wrong (or tokens are speculated). Raises ValueError."""
    if not 0 < tpot_s < math.inf or not 0 < bound_per_s < math.inf:
        raise ValueError(f"a TPOT of {tpot_s} s against {bound_per_s} tokens/s: both are above 0")
    return 1 / tpot_s / bound_per_s


def _active_parameters(config: Mapping[str, Any] | None) -> float | Refused:
    """Attention, MLP or the experts a token is sent to, and the output matrix (the embeddings themselves if tied)."""
    if config is None:
        return Refused("no config.json: configure the active parameters")
    kind = config.get("model_type")
    if kind not in DENSE and kind not in EXPERTS:
        return Refused(f"active parameters of a model of type {kind!r} are not known: configure them")
    if kind == "qwen3_moe" and (config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1):
        return Refused("some layers have no experts: configure the active parameters")
    expert = EXPERTS.get(str(kind))
    names = ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", expert or "intermediate_size"]
    sizes = _sizes(config, *names, *(["num_experts_per_tok"] if expert else []))
    attention = _attention(config)
    if isinstance(sizes, Refused):
        return sizes
    if isinstance(attention, Refused):
        return attention
    (hidden, layers, heads, vocabulary, inner), chosen = sizes[:5], (sizes[5] if expert else 1)
    _, kv_heads, head_size = attention
    per_layer = 2 * hidden * head_size * (heads + kv_heads) + chosen * 3 * hidden * inner
    if expert:
        experts = _sizes(config, "num_local_experts" if kind == "mixtral" else "num_experts")
        if isinstance(experts, Refused):
            return experts
        per_layer += hidden * experts[0]  # the router
    return float(layers * per_layer + vocabulary * hidden)


def _attention(config: Mapping[str, Any]) -> tuple[int, int, int] | Refused:
    """Layers, KV heads, size of a head. Without their own entries KV heads are all heads, and heads share the hidden size."""
    sizes = _sizes(config, "num_hidden_layers", "num_attention_heads", "hidden_size")
    if isinstance(sizes, Refused):
        return sizes
    layers, heads, hidden = sizes
    given = {name: config[name] for name in ("num_key_value_heads", "head_dim") if config.get(name) is not None}
    filled = _sizes(
        {"num_key_value_heads": heads, "head_dim": hidden // heads, **given}, "num_key_value_heads", "head_dim"
    )
    return filled if isinstance(filled, Refused) else (layers, filled[0], filled[1])


def _bytes_per_weight(config: Mapping[str, Any] | None) -> float | Refused:
    if config is None:
        return Refused("no config.json: configure the bytes per weight")
    if config.get("quantization_config"):
        return Refused("a quantised checkpoint does not tell how much of it is: configure the bytes per weight")
    kept = config.get("dtype") or config.get("torch_dtype")
    return 2.0 if kept in _HALF else Refused(f"weights kept as {kept!r} may be loaded otherwise: configure their bytes")


def _kv_bytes_per_token(config: Mapping[str, Any] | None, bytes_each: float | None) -> float | Refused:
    if config is None:
        return Refused("no config.json: configure the KV bytes per token")
    if config.get("model_type") not in DENSE and config.get("model_type") not in EXPERTS:
        return Refused(f"KV cache of a model of type {config.get('model_type')!r} is not known: configure its bytes")
    attention = _attention(config)
    if isinstance(attention, Refused):
        return attention
    each = bytes_each or (2.0 if (config.get("dtype") or config.get("torch_dtype")) in _HALF else None)
    return kv_bytes_per_token(*attention, each) if each else Refused("type of the KV cache is not known: configure it")


def _window_tokens(config: Mapping[str, Any] | None) -> int | None:
    """Qwen's has a switch. Where only some layers have one, taking it for all keeps the bound a bound."""
    if config is None or not config.get("use_sliding_window", True):
        return None
    window = config.get("sliding_window")
    return window if isinstance(window, int) and window > 0 else None


def _sizes(config: Mapping[str, Any], *names: str) -> tuple[int, ...] | Refused:
    """Entries that must be whole numbers above 0."""
    found = [config.get(name) for name in names]
    bad = [name for name, each in zip(names, found, strict=True) if type(each) is not int or each < 1]
    if bad:
        return Refused(f"config.json has no usable {', '.join(bad)}: configure the model")
    return tuple(each for each in found if each is not None)
