"""Any OpenAI-compatible endpoint: nothing beyond the specification is sent, so lengths cannot be forced."""

from prober.measure.chat import Dialect

DIALECT = Dialect(name="openai", health=None)
