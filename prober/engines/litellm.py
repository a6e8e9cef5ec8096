"""LiteLLM's proxy. The usage chunk has a choice with an empty delta; it is told by its own response header."""

from prober.measure.chat import Dialect

DIALECT = Dialect(name="litellm", header="x-litellm-version", health="/health/liveliness")
