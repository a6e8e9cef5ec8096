"""TensorRT-LLM's trtllm-serve. Puts a space behind the JSON of a chunk; sends chunks with empty content for unflushed text."""

from prober.measure.chat import Dialect

DIALECT = Dialect(
    name="trtllm",
    owned_by="tensorrt_llm",
    force_length={"ignore_eos": True, "min_tokens": Dialect.TOKENS},
    cache_bypass={"cache_salt": Dialect.SALT},
    continuous_usage=True,
)
