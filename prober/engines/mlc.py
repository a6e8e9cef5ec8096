"""MLC LLM. Forces a length only through its debug switch."""

from prober.measure.chat import Dialect

DIALECT = Dialect(
    name="mlc",
    owned_by="MLC-LLM",
    force_length={"debug_config": {"ignore_eos": True}},
    health=None,
)
