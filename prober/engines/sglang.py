"""SGLang (0.5). It listens while it loads its model and answers 503 on /health; named events carry token ids."""

from prober.measure.chat import Dialect

DIALECT = Dialect(
    name="sglang",
    owned_by="sglang",
    force_length={"ignore_eos": True, "min_tokens": Dialect.TOKENS},
    cache_bypass={"cache_salt": Dialect.SALT},
    continuous_usage=True,
    loads_listening=True,
)
