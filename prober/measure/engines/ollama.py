"""Ollama ignores unknown fields and loads a cold model within the request; completions have a usage of zeros in each chunk."""

from prober.measure.chat import Dialect
from prober.measure.engine_signals import EngineTable, JsonFact, OfModel

DIALECT = Dialect(name="ollama", owned_by="library", health=None)

TABLES = (
    EngineTable(
        engine="ollama",
        paths=(),
        facts=(JsonFact("version", "/api/version", ("version",)),),
        note="Ollama has no metrics page (none in 0.33)",
    ),
)
CONTEXT = (
    JsonFact("engine_version", "/api/version", ("version",)),
    JsonFact("quantization", "/api/tags", ("models", OfModel("name"), "details", "quantization_level")),
    JsonFact("model_revision", "/api/tags", ("models", OfModel("name"), "digest")),
)
