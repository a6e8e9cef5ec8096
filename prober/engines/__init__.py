"""The engines this prober knows, one file each: data only."""

from prober.engines import (
    litellm,
    llamacpp,
    lmdeploy,
    mlc,
    ollama,
    openai,
    sglang,
    tabbyapi,
    tgi,
    transformers,
    trtllm,
    vllm,
)
from prober.measure.chat import Dialect

GENERIC = openai.DIALECT
DIALECTS: dict[str, Dialect] = {
    module.DIALECT.name: module.DIALECT
    for module in (
        vllm,
        sglang,
        trtllm,
        tgi,
        llamacpp,
        lmdeploy,
        ollama,
        transformers,
        litellm,
        tabbyapi,
        mlc,
        openai,
    )
}


def detect(owned_by: str | None, headers: dict[str, str]) -> Dialect:
    """The dialect of the server whose `/v1/models` answered with these; the plain OpenAI one if nothing gives it away."""
    for dialect in DIALECTS.values():
        if dialect.header is not None and dialect.header in headers:
            return dialect
    for dialect in DIALECTS.values():
        if dialect.owned_by is not None and dialect.owned_by == owned_by:
            return dialect
    return GENERIC
