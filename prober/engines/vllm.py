"""vLLM (0.8 to 0.33). Seen live on 0.32: role chunk together with the first output; a clean end is finish reason, usage chunk, [DONE].

`cache_salt` since 0.9; older releases ignore fields they do not know."""

from prober.measure.chat import Dialect

DIALECT = Dialect(
    name="vllm",
    owned_by="vllm",
    force_length={"ignore_eos": True, "min_tokens": Dialect.TOKENS},
    cache_bypass={"cache_salt": Dialect.SALT},
    continuous_usage=True,
)
