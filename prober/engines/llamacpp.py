"""The llama.cpp server. Says Loading model on /health while it loads; ends an error without [DONE]."""

from prober.measure.chat import Dialect

DIALECT = Dialect(
    name="llamacpp",
    owned_by="llamacpp",
    force_length={"ignore_eos": True},
    cache_bypass={"cache_prompt": False},
    loads_listening=True,
)
