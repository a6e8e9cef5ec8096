"""tiny_gguf.py MODEL_DIR FILE: the model of tiny_model.py as llama.cpp loads it.

Written with llama.cpp's own gguf package, since its converter refuses a tokenizer that is in no list of known ones. The
rows of the query and key weights keep transformers' order where llama.cpp has another: random weights are alike in any.
Run by the Python of an engine: needs gguf, safetensors and numpy.
"""

import json
import sys
from pathlib import Path

import gguf
from safetensors.numpy import load_file

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}


def tensor_name(name: str) -> str:
    """`model.layers.1.mlp.up_proj.weight` is llama.cpp's `blk.1.ffn_up.weight`."""
    stem = name.removesuffix(".weight")
    if stem.startswith("model.layers."):
        _, _, layer, part = stem.split(".", 3)
        return f"blk.{layer}.{NAMES[part]}.weight"
    return f"{NAMES[stem]}.weight"


def add_shape(file: gguf.GGUFWriter, config: dict[str, object]) -> None:
    file.add_context_length(config["max_position_embeddings"])
    file.add_embedding_length(config["hidden_size"])
    file.add_feed_forward_length(config["intermediate_size"])
    file.add_block_count(config["num_hidden_layers"])
    file.add_head_count(config["num_attention_heads"])
    file.add_head_count_kv(config["num_key_value_heads"])
    file.add_layer_norm_rms_eps(config["rms_norm_eps"])
    file.add_vocab_size(config["vocab_size"])


def add_tokenizer(file: gguf.GGUFWriter, folder: Path, config: dict[str, object]) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    special = {token["content"] for token in tokenizer["added_tokens"]}
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("gpt-2")
    file.add_token_list(tokens)
    file.add_token_types([gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens])
    file.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    file.add_bos_token_id(config["bos_token_id"])
    file.add_eos_token_id(config["eos_token_id"])
    file.add_pad_token_id(config["pad_token_id"])
    file.add_add_bos_token(False)
    file.add_chat_template((folder / "chat_template.jinja").read_text())


def write(folder: Path, path: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    file = gguf.GGUFWriter(path, "llama")
    add_shape(file, config)
    add_tokenizer(file, folder, config)
    for name, weights in load_file(folder / "model.safetensors").items():
        file.add_tensor(tensor_name(name), weights)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2])
