"""The engines that the prober knows, one file each: data only.

Entries that are equal in several files stay in each of them, because engines change independently.
"""

from prober.measure.chat import Dialect
from prober.measure.engine_signals import EngineTable, JsonFact
from prober.measure.engines import (
    aphrodite,
    dynamo,
    genai,
    kserve,
    litellm,
    llamacpp,
    llmd,
    lmdeploy,
    mlc,
    nim,
    ollama,
    openai,
    ray,
    sglang,
    tabbyapi,
    tgi,
    transformers,
    triton,
    trtllm,
    vllm,
)

# In the order in which a page's shape is tried: an engine's own names come before those of what stands in front of or around it (a
# Dynamo worker's page has its engine's too), and names without a prefix come last.
_MODULES = (
    triton, vllm, sglang, trtllm, tgi, llamacpp, lmdeploy, aphrodite, ray, dynamo, llmd, ollama, transformers, litellm, tabbyapi, mlc,
    nim, kserve, genai, openai,
)  # fmt: skip
GENERIC = openai.DIALECT
_WITH_DIALECT = [module for module in _MODULES if hasattr(module, "DIALECT")]
DIALECTS: dict[str, Dialect] = {module.DIALECT.name: module.DIALECT for module in _WITH_DIALECT}
TABLES: tuple[EngineTable, ...] = tuple(table for module in _MODULES for table in getattr(module, "TABLES", ()))
# Facts for the context of a result, by engine. The first answer with a fact wins.
CONTEXT_FACTS: dict[str, tuple[JsonFact, ...]] = {
    module.DIALECT.name: module.CONTEXT for module in _WITH_DIALECT if hasattr(module, "CONTEXT")
}


def tables(engine: str) -> tuple[EngineTable, ...]:
    """Returns the tables of an engine, one for each generation of its metrics page; empty if it has none, such as `openai`."""
    return tuple(table for table in TABLES if table.engine == engine)


def detect(owned_by: str | None, headers: dict[str, str]) -> Dialect:
    """Returns the dialect of a server by `owned_by` and headers of its `/v1/models`; plain OpenAI if neither identifies the engine."""
    for dialect in DIALECTS.values():
        if dialect.header is not None and dialect.header in headers:
            return dialect
    for dialect in DIALECTS.values():
        if dialect.owned_by is not None and dialect.owned_by == owned_by:
            return dialect
    return GENERIC
