"""The bound that memory bandwidth sets: figures by hand, and refusals instead of guesses."""

import math
from typing import Any

import pytest

from prober.measure.bandwidth_bound import (
    Configured,
    Model,
    Refused,
    bound,
    kv_bytes_per_token,
    measured_over_bound,
    memory_bandwidth,
    model_of,
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


def known(found: Model | Refused) -> Model:
    assert isinstance(found, Model), found
    return found


def refused(found: object) -> str:
    assert isinstance(found, Refused), found
    return found.reason


def test_llama_3_8b_by_hand() -> None:
    """Per layer 41,943,040 in attention and 176,160,768 in the MLP, 32 layers, an output of 128,256 × 4,096; 128 KiB of KV."""
    model = known(model_of(LLAMA_3_8B))
    assert model.active_parameters == 32 * (41_943_040 + 176_160_768) + 525_336_576 == 7_504_658_432
    assert (model.bytes_per_weight, model.kv_bytes_per_token, model.window_tokens) == (2.0, 131_072, None)


def test_of_a_mixture_of_experts_those_that_are_chosen_count() -> None:
    """Mixtral reads 2 of 8 experts: 12.7 billion of its 46.7 billion parameters, with the router and without the embeddings."""
    model = known(model_of(MIXTRAL_8X7B))
    assert model.active_parameters == 32 * (41_943_040 + 2 * 176_160_768 + 32_768) + 131_072_000
    assert 12.7e9 < model.active_parameters < 12.8e9


def test_a_head_size_of_its_own_and_no_grouping_are_followed() -> None:
    """`head_dim` goes before hidden ÷ heads; without `num_key_value_heads` every head has its own keys."""
    config = {**LLAMA_3_8B, "head_dim": 64}
    assert known(model_of(config)).kv_bytes_per_token == kv_bytes_per_token(32, 8, 64, 2.0)
    del config["num_key_value_heads"]
    assert known(model_of(config)).kv_bytes_per_token == 2 * 32 * 32 * 64 * 2


def test_the_bound_by_hand() -> None:
    """On 3.35 TB/s an idle Llama-3-8B cannot pass 223 tokens/s a stream; 100,000 tokens of context take it to 119."""
    model = known(model_of(LLAMA_3_8B))
    assert bound(model, 3.35e12) == pytest.approx(3.35e12 / 15_009_316_864)
    assert bound(model, 3.35e12) == pytest.approx(223.2, abs=0.1)
    assert bound(model, 3.35e12, context_tokens=100_000, sequences=50) == pytest.approx(119.1, abs=0.2)
    assert bound(model, 3.35e12, gpus=2) == 2 * bound(model, 3.35e12)
    assert measured_over_bound(0.005, bound(model, 3.35e12)) == pytest.approx(0.896, abs=0.001)


def test_what_lies_beyond_a_window_is_not_read() -> None:
    """A sliding window bounds the context of each sequence; Qwen's counts only where it is switched on."""
    model = known(model_of({**LLAMA_3_8B, "model_type": "mistral", "sliding_window": 4096}))
    assert bound(model, 1e12, context_tokens=50_000, sequences=2) == bound(
        model, 1e12, context_tokens=8_192, sequences=2
    )
    off = {**LLAMA_3_8B, "model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}
    assert known(model_of(off)).window_tokens is None


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
def test_what_would_have_to_be_guessed_is_refused(changes: dict[str, Any], word: str) -> None:
    """An unknown architecture, a quantised or 32-bit checkpoint, sizes that are none: refused, and the reason names it."""
    assert word in refused(model_of({**LLAMA_3_8B, **changes}))


def test_what_is_configured_goes_first() -> None:
    """An operator's figures stand for those that are refused, each for its own."""
    unknown = {**LLAMA_3_8B, "model_type": "deepseek_v3"}
    assert "active parameters" in refused(model_of(unknown, Configured(bytes_per_weight=1, kv_bytes_per_token=70_000)))
    told = Configured(active_parameters=37e9, bytes_per_weight=1, kv_bytes_per_token=70_000)
    assert known(model_of(None, told)) == Model(37e9, 1, 70_000)
    awq = {**LLAMA_3_8B, "quantization_config": {"bits": 4}}
    assert known(model_of(awq, Configured(bytes_per_weight=0.53))).bytes_per_weight == 0.53
    assert known(model_of(LLAMA_3_8B, Configured(kv_bytes=1))).kv_bytes_per_token == 65_536


def test_a_gpu_is_known_by_its_whole_name_or_not_at_all() -> None:
    """No part of a name, no partition and no other memory is taken for a listed GPU; an override goes first."""
    assert memory_bandwidth("NVIDIA H100 80GB HBM3") == 3.35e12
    assert memory_bandwidth("NVIDIA H100 PCIe") == 2.0e12
    for name in ("NVIDIA H100", "H100", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", ""):
        assert "configure" in refused(memory_bandwidth(name))
    assert "partition" in refused(memory_bandwidth("NVIDIA H100 80GB HBM3 MIG 1g.10gb"))
    assert memory_bandwidth("NVIDIA H100 80GB HBM3", {"NVIDIA H100 80GB HBM3": 1e12}) == 1e12


def test_what_cannot_be_is_an_error() -> None:
    """Nothing below zero, nothing infinite, no machine of no GPUs."""
    model = Model(1e9, 2, 1e5)
    for bandwidth, gpus, context in ((0, 1, 0), (math.inf, 1, 0), (1e12, 0, 0), (1e12, 1, -1), (1e12, 1, math.inf)):
        with pytest.raises(ValueError, match="no such machine"):
            bound(model, bandwidth, gpus=gpus, context_tokens=context)
    for tpot_s, per_s in ((0, 1), (-1, 1), (1, 0), (math.nan, 1)):
        with pytest.raises(ValueError, match="above 0"):
            measured_over_bound(tpot_s, per_s)
    with pytest.raises(ValueError, match="above 0"):
        Model(0, 2, 1)
    with pytest.raises(ValueError, match="0 or more"):
        Model(1, 2, -1)
