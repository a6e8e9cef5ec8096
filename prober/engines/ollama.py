"""Ollama. Unknown fields are dropped; a cold model is loaded inside the request; completions carry a usage of zeros on each chunk."""

from prober.measure.chat import Dialect

DIALECT = Dialect(name="ollama", owned_by="library", health=None)
