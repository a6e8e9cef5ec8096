"""LMDeploy (0.18). Names the lower bound of a length `min_new_tokens`."""

from prober.measure.chat import Dialect

DIALECT = Dialect(
    name="lmdeploy",
    owned_by="lmdeploy",
    force_length={"ignore_eos": True, "min_new_tokens": Dialect.TOKENS},
)
