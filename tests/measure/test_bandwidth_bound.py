"""Memory-bandwidth bound of decoding: figures computed by hand, and no result where an input is unknown."""

import math
from typing import Any

import pytest

from prober.measure.bandwidth_bound import (
    DecodeModel,
    UnknownFigure,
    decode_bound_tokens_per_s,
    decode_model,
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

DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "first_k_dense_replace": 3,
    "moe_layer_freq": 1,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "vocab_size": 129280,
    "torch_dtype": "bfloat16",
}
DEEPSEEK_V2: dict[str, Any] = {
    **DEEPSEEK_V3,
    "model_type": "deepseek_v2",
    "hidden_size": 5120,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
    "num_hidden_layers": 60,
    "first_k_dense_replace": 1,
    "n_routed_experts": 160,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "vocab_size": 102400,
}
DEEPSEEK_V2_LITE: dict[str, Any] = {
    **DEEPSEEK_V2,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "q_lora_rank": None,
    "n_routed_experts": 64,
}


def test_llama_3_8b_model_matches_a_manual_calculation() -> None:
    """Per layer 41,943,040 in attention and 176,160,768 in the MLP, 32 layers, output 128,256 × 4,096; 128 KiB of KV per token."""
    model = decode_model(LLAMA_3_8B)
    assert model.active_parameters == 32 * (41_943_040 + 176_160_768) + 525_336_576 == 7_504_658_432
    assert (model.bytes_per_weight, model.kv_bytes_per_token, model.window_tokens) == (2.0, 131_072, None)


def test_only_the_routed_experts_of_a_mixture_count() -> None:
    """Mixtral reads 2 of 8 experts: 12.7 billion of 46.7 billion parameters, including the router, excluding the embeddings."""
    model = decode_model(MIXTRAL_8X7B)
    assert model.active_parameters == 32 * (41_943_040 + 2 * 176_160_768 + 32_768) + 131_072_000
    assert 12.7e9 < model.active_parameters < 12.8e9


@pytest.mark.parametrize(
    ("config", "published", "published_active", "published_kv"),
    [  # the technical reports of DeepSeek-V3 and DeepSeek-V2; the KV cache of V2 is 4.5 × head size × layers
        pytest.param(DEEPSEEK_V3, 671e9, 37e9, 61 * 576 * 2, id="V3"),
        pytest.param(DEEPSEEK_V2, 236e9, 21e9, 4.5 * 128 * 60 * 2, id="V2"),
        pytest.param(DEEPSEEK_V2_LITE, 15.7e9, 2.4e9, 27 * 576 * 2, id="V2-Lite"),
    ],
)
def test_latent_attention_has_the_published_figures(
    config: dict[str, Any], published: float, published_active: float, published_kv: float
) -> None:
    """All parameters are those with every expert active, and the embeddings."""
    whole = decode_model({**config, "num_experts_per_tok": config["n_routed_experts"]}).active_parameters
    assert whole + config["vocab_size"] * config["hidden_size"] == pytest.approx(published, rel=0.003)
    model = decode_model(config)
    assert model.active_parameters == pytest.approx(published_active, rel=0.03)
    assert model.kv_bytes_per_token == published_kv


def test_a_checkpoint_in_8_bit_reads_its_output_matrix_in_16() -> None:
    quantised = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [128, 128]}
    plain, small = decode_model(DEEPSEEK_V3), decode_model({**DEEPSEEK_V3, "quantization_config": quantised})
    in_16_bit = 129_280 * 7_168 + 58 * 7_168 * 256
    assert small.active_parameters * small.bytes_per_weight == pytest.approx(plain.active_parameters + in_16_bit)


@pytest.mark.parametrize(
    ("quantisation", "published_gb"),
    [  # sizes of the published files of Llama-2-7B in 4 bit with groups of 128
        pytest.param(
            {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}, 3.89, id="AWQ"
        ),
        pytest.param(
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": False, "desc_act": False}, 3.90, id="GPTQ"
        ),
    ],
)
def test_a_quantised_checkpoint_reads_what_its_files_hold(quantisation: dict[str, Any], published_gb: float) -> None:
    """The files hold the embeddings too, in 16 bit, of which a step reads one row."""
    llama_2 = {
        **LLAMA_3_8B,
        "intermediate_size": 11008,
        "num_key_value_heads": 32,
        "vocab_size": 32000,
        "torch_dtype": "float16",
    }
    model = decode_model({**llama_2, "quantization_config": quantisation})
    read = model.active_parameters * model.bytes_per_weight
    assert read + 32_000 * 4_096 * 2 == pytest.approx(published_gb * 1e9, rel=0.005)


def test_explicit_head_size_and_missing_kv_heads_are_respected() -> None:
    """`head_dim` overrides hidden ÷ heads; without `num_key_value_heads` every head has its own keys."""
    config = {**LLAMA_3_8B, "head_dim": 64}
    assert decode_model(config).kv_bytes_per_token == 2 * 32 * 8 * 64 * 2
    del config["num_key_value_heads"]
    assert decode_model(config).kv_bytes_per_token == 2 * 32 * 32 * 64 * 2


def test_the_bound_matches_a_manual_calculation() -> None:
    """With 3.35 TB/s an idle Llama-3-8B is limited to 223 tokens/s per stream; 100,000 tokens of context lower it to 119."""
    model = decode_model(LLAMA_3_8B)
    assert decode_bound_tokens_per_s(model, 3.35e12) == pytest.approx(3.35e12 / 15_009_316_864)
    assert decode_bound_tokens_per_s(model, 3.35e12) == pytest.approx(223.2, abs=0.1)
    assert decode_bound_tokens_per_s(model, 3.35e12, context_tokens=100_000, sequences=50) == pytest.approx(
        119.1, abs=0.2
    )
    assert decode_bound_tokens_per_s(model, 3.35e12, gpus=2) == 2 * decode_bound_tokens_per_s(model, 3.35e12)


def test_context_beyond_a_sliding_window_is_not_counted() -> None:
    """A sliding window limits the context of each sequence; Qwen's window counts only if it is enabled."""
    model = decode_model({**LLAMA_3_8B, "model_type": "mistral", "sliding_window": 4096})
    assert decode_bound_tokens_per_s(model, 1e12, context_tokens=50_000, sequences=2) == decode_bound_tokens_per_s(
        model, 1e12, context_tokens=8_192, sequences=2
    )
    off = {**LLAMA_3_8B, "model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}
    assert decode_model(off).window_tokens is None


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model_type": "qwen3_next"}, "qwen3_next"),
        ({"model_type": "deepseek_v3"}, "kv_lora_rank"),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 2}, "no experts"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantised"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "bits": 4, "group_size": 64}}, "quantised"),
        ({"quantization_config": {"quant_method": "fp8", "modules_to_not_convert": ["visual"]}}, "quantised"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128, "lm_head": True}}, "quantised"),
        ({"quantization_config": "awq"}, "quantised"),
        ({"torch_dtype": "float32"}, "float32"),
        ({"torch_dtype": None}, "None"),
        ({"hidden_size": "4096"}, "hidden_size"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"vocab_size": True}, "vocab_size"),
    ],
)
def test_unknown_inputs_are_not_guessed(changes: dict[str, Any], word: str) -> None:
    """An unknown architecture, a quantised or 32-bit checkpoint or an invalid size yields no model; the reason names it."""
    with pytest.raises(UnknownFigure, match=word):
        decode_model({**LLAMA_3_8B, **changes})


def test_configured_values_take_precedence() -> None:
    """Each configured value replaces the one from config.json, also where that is unknown."""
    unknown = {**LLAMA_3_8B, "model_type": "qwen3_next"}
    with pytest.raises(UnknownFigure, match="active parameters"):
        decode_model(unknown, bytes_per_weight=1, kv_bytes_per_token=70_000)
    configured = decode_model(None, active_parameters=37e9, bytes_per_weight=1, kv_bytes_per_token=70_000)
    assert configured == DecodeModel(37e9, 1, 70_000)
    awq = {**LLAMA_3_8B, "quantization_config": {"bits": 4}}
    assert decode_model(awq, bytes_per_weight=0.53).bytes_per_weight == 0.53


def test_a_gpu_is_matched_by_its_exact_name() -> None:
    """A partial name, a partition or a variant with other memory does not match a listed GPU."""
    assert memory_bandwidth("NVIDIA H100 80GB HBM3") == 3.35e12
    assert memory_bandwidth("NVIDIA H100 PCIe") == 2.0e12
    for name in ("NVIDIA H100", "H100", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", ""):
        with pytest.raises(UnknownFigure, match="partition.*configure" if "MIG" in name else "configure"):
            memory_bandwidth(name)


def test_impossible_inputs_raise() -> None:
    """Negative and infinite values and zero GPUs raise ValueError."""
    model = DecodeModel(1e9, 2, 1e5)
    for bandwidth, gpus, context in ((0, 1, 0), (math.inf, 1, 0), (1e12, 0, 0), (1e12, 1, -1), (1e12, 1, math.inf)):
        with pytest.raises(ValueError, match="give a finite bandwidth"):
            decode_bound_tokens_per_s(model, bandwidth, gpus=gpus, context_tokens=context)
    with pytest.raises(ValueError, match="above 0"):
        DecodeModel(0, 2, 1)
    with pytest.raises(ValueError, match="0 or more"):
        DecodeModel(1, 2, -1)
