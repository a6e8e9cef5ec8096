"""Memory-bandwidth bound of decoding: figures computed by hand, and no result where an input is unknown."""

import math
from typing import Any

import pytest

from prober.measure.bandwidth_bound import (
    DecodeModel,
    ModelOverrides,
    UnknownFigure,
    decode_bound_tokens_per_s,
    decode_model,
    kv_bytes_per_token,
    measured_to_bound_ratio,
    memory_bandwidth,
)

LLAMA_3_8B: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
MIXTRAL_8X7B: dict[str, Any] = {
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32000,
    "torch_dtype": "bfloat16",
}


def known(model: DecodeModel | UnknownFigure) -> DecodeModel:
    assert isinstance(model, DecodeModel), model
    return model


def unknown_reason(result: object) -> str:
    assert isinstance(result, UnknownFigure), result
    return result.reason


def test_llama_3_8b_model_matches_a_manual_calculation() -> None:
    """Per layer 41,943,040 in attention and 176,160,768 in the MLP, 32 layers, output 128,256 × 4,096; 128 KiB of KV per token."""
    model = known(decode_model(LLAMA_3_8B))
    assert model.active_parameters == 32 * (41_943_040 + 176_160_768) + 525_336_576 == 7_504_658_432
    assert (model.bytes_per_weight, model.kv_bytes_per_token, model.window_tokens) == (2.0, 131_072, None)


def test_only_the_routed_experts_of_a_mixture_count() -> None:
    """Mixtral reads 2 of 8 experts: 12.7 billion of 46.7 billion parameters, including the router, excluding the embeddings."""
    model = known(decode_model(MIXTRAL_8X7B))
    assert model.active_parameters == 32 * (41_943_040 + 2 * 176_160_768 + 32_768) + 131_072_000
    assert 12.7e9 < model.active_parameters < 12.8e9


def test_explicit_head_size_and_missing_kv_heads_are_respected() -> None:
    """`head_dim` overrides hidden ÷ heads; without `num_key_value_heads` every head has its own keys."""
    config = {**LLAMA_3_8B, "head_dim": 64}
    assert known(decode_model(config)).kv_bytes_per_token == kv_bytes_per_token(32, 8, 64, 2.0)
    del config["num_key_value_heads"]
    assert known(decode_model(config)).kv_bytes_per_token == 2 * 32 * 32 * 64 * 2


def test_the_bound_matches_a_manual_calculation() -> None:
    """With 3.35 TB/s an idle Llama-3-8B is limited to 223 tokens/s per stream; 100,000 tokens of context lower it to 119."""
    model = known(decode_model(LLAMA_3_8B))
    assert decode_bound_tokens_per_s(model, 3.35e12) == pytest.approx(3.35e12 / 15_009_316_864)
    assert decode_bound_tokens_per_s(model, 3.35e12) == pytest.approx(223.2, abs=0.1)
    assert decode_bound_tokens_per_s(model, 3.35e12, context_tokens=100_000, sequences=50) == pytest.approx(
        119.1, abs=0.2
    )
    assert decode_bound_tokens_per_s(model, 3.35e12, gpus=2) == 2 * decode_bound_tokens_per_s(model, 3.35e12)
    assert measured_to_bound_ratio(0.005, decode_bound_tokens_per_s(model, 3.35e12)) == pytest.approx(0.896, abs=0.001)


def test_context_beyond_a_sliding_window_is_not_counted() -> None:
    """A sliding window limits the context of each sequence; Qwen's window counts only if it is enabled."""
    model = known(decode_model({**LLAMA_3_8B, "model_type": "mistral", "sliding_window": 4096}))
    assert decode_bound_tokens_per_s(model, 1e12, context_tokens=50_000, sequences=2) == decode_bound_tokens_per_s(
        model, 1e12, context_tokens=8_192, sequences=2
    )
    off = {**LLAMA_3_8B, "model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}
    assert known(decode_model(off)).window_tokens is None


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model_type": "deepseek_v3"}, "deepseek_v3"),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 2}, "no experts"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised"),
        ({"torch_dtype": "float32"}, "float32"),
        ({"torch_dtype": None}, "None"),
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"vocab_size": True}, "vocab_size"),
    ],
)
def test_unknown_inputs_are_not_guessed(changes: dict[str, Any], word: str) -> None:
    """An unknown architecture, a quantised or 32-bit checkpoint or an invalid size yields no model; the reason names it."""
    assert word in unknown_reason(decode_model({**LLAMA_3_8B, **changes}))


def test_configured_values_take_precedence() -> None:
    """Each configured value replaces the one from config.json, also where that is unknown."""
    unknown = {**LLAMA_3_8B, "model_type": "deepseek_v3"}
    assert "active parameters" in unknown_reason(
        decode_model(unknown, ModelOverrides(bytes_per_weight=1, kv_bytes_per_token=70_000))
    )
    overrides = ModelOverrides(active_parameters=37e9, bytes_per_weight=1, kv_bytes_per_token=70_000)
    assert known(decode_model(None, overrides)) == DecodeModel(37e9, 1, 70_000)
    awq = {**LLAMA_3_8B, "quantization_config": {"bits": 4}}
    assert known(decode_model(awq, ModelOverrides(bytes_per_weight=0.53))).bytes_per_weight == 0.53
    assert known(decode_model(LLAMA_3_8B, ModelOverrides(kv_bytes=1))).kv_bytes_per_token == 65_536


def test_a_gpu_is_matched_by_its_exact_name() -> None:
    """A partial name, a partition or a variant with other memory does not match a listed GPU; an override takes precedence."""
    assert memory_bandwidth("NVIDIA H100 80GB HBM3") == 3.35e12
    assert memory_bandwidth("NVIDIA H100 PCIe") == 2.0e12
    for name in ("NVIDIA H100", "H100", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", ""):
        assert "configure" in unknown_reason(memory_bandwidth(name))
    assert "partition" in unknown_reason(memory_bandwidth("NVIDIA H100 80GB HBM3 MIG 1g.10gb"))
    assert memory_bandwidth("NVIDIA H100 80GB HBM3", {"NVIDIA H100 80GB HBM3": 1e12}) == 1e12


def test_impossible_inputs_raise() -> None:
    """Negative and infinite values and zero GPUs raise ValueError."""
    model = DecodeModel(1e9, 2, 1e5)
    for bandwidth, gpus, context in ((0, 1, 0), (math.inf, 1, 0), (1e12, 0, 0), (1e12, 1, -1), (1e12, 1, math.inf)):
        with pytest.raises(ValueError, match="give a finite bandwidth"):
            decode_bound_tokens_per_s(model, bandwidth, gpus=gpus, context_tokens=context)
    for tpot_s, per_s in ((0, 1), (-1, 1), (1, 0), (math.nan, 1)):
        with pytest.raises(ValueError, match="above 0"):
            measured_to_bound_ratio(tpot_s, per_s)
    with pytest.raises(ValueError, match="above 0"):
        DecodeModel(0, 2, 1)
    with pytest.raises(ValueError, match="0 or more"):
        DecodeModel(1, 2, -1)
