"""tiny_model.py DIR [larger]: a Llama of 0.4 (11) million random weights with a tokenizer of its own, as vLLM loads it.

Larger: its steps take what a step costs and not what the server around it does; sweeps beside a grid were measured on it.

Made on the spot, so that no weights are fetched. Run by the Python of an engine: needs torch, transformers, tokenizers.
"""

import sys
import sysconfig
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 2048
CONTEXT = 4096
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE, learnt from the text that every Python has beside it: its standard library."""
    sources = islice(sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")), 100)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = byte_level
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        (source.read_text(encoding="utf-8") for source in sources),
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"],
            initial_alphabet=byte_level.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<|endoftext|>",
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        model_max_length=CONTEXT,
        chat_template=CHAT_TEMPLATE,
    )


def model(words: PreTrainedTokenizerFast, *, larger: bool = False) -> LlamaForCausalLM:
    """Random weights that, at temperature 0, write plain text only.

    Engines hold back a token that is half a character, so that the first text would come later than the first token; the
    rows of the output weights of such tokens are zero, and the largest of two thousand random logits is above that.
    """
    torch.manual_seed(0)
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=384 if larger else 64,
            intermediate_size=1024 if larger else 256,
            num_hidden_layers=6 if larger else 2,
            num_attention_heads=12 if larger else 2,
            num_key_value_heads=4 if larger else 1,
            max_position_embeddings=CONTEXT,
            bos_token_id=words.bos_token_id,
            eos_token_id=words.eos_token_id,
            pad_token_id=words.pad_token_id,
            tie_word_embeddings=False,
        )
    )
    unwritable = [token for token in range(VOCABULARY) if not words.decode(token, skip_special_tokens=True).isascii()]
    with torch.no_grad():
        llama.lm_head.weight[[*unwritable, *words.all_special_ids]] = 0
    return llama


if __name__ == "__main__":
    words = tokenizer()
    words.save_pretrained(sys.argv[1])
    model(words, larger=sys.argv[2:] == ["larger"]).save_pretrained(sys.argv[1])
