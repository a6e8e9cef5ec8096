"""Any OpenAI-compatible endpoint. Only specified fields are sent, so lengths cannot be forced."""

from prober.measure.chat import Dialect

DIALECT = Dialect(name="openai", health=None)
