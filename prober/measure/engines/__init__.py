"""The engines that the prober knows, one file each; data only.

Equal entries are repeated in several files, because engines change independently.
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

# Order in which the shapes of pages are tried: an engine's own names before those of a proxy or runtime around it (a Dynamo worker's
# page also has its engine's names); names without a prefix last.
_MODULES = (
    triton, vllm, sglang, trtllm, tgi, llamacpp, lmdeploy, aphrodite, ray, dynamo, llmd, ollama, transformers, litellm, tabbyapi, mlc,
    nim, kserve, genai, openai,
)  # fmt: skip
GENERIC = openai.DIALECT
_WITH_DIALECT = [module for module in _MODULES if hasattr(module, "DIALECT")]
DIALECTS: dict[str, Dialect] = {module.DIALECT.name: module.DIALECT for module in _WITH_DIALECT}
TABLES: tuple[EngineTable, ...] = tuple(table for module in _MODULES for table in getattr(module, "TABLES", ()))
# Facts for a result's context, by engine. The first answer with a fact is used.
CONTEXT_FACTS: dict[str, tuple[JsonFact, ...]] = {
    module.DIALECT.name: module.CONTEXT for module in _WITH_DIALECT if hasattr(module, "CONTEXT")
}


def tables(engine: str) -> tuple[EngineTable, ...]:
    """The tables of an engine, one per generation of its metrics page; empty without a page, such as `openai`."""
    return tuple(table for table in TABLES if table.engine == engine)


def detect(owned_by: str | None, headers: dict[str, str]) -> Dialect:
    """Recognise a server's dialect by `owned_by` and the headers of `/v1/models`; plain OpenAI if neither identifies the engine."""
    for dialect in DIALECTS.values():
        if dialect.header is not None and dialect.header in headers:
            return dialect
    for dialect in DIALECTS.values():
        if dialect.owned_by is not None and dialect.owned_by == owned_by:
            return dialect
    return GENERIC
