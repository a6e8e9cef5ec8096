"""Facts that engines state about themselves: captured and described documents in, facts out; and what a reading may do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from aiohttp import web

from prober.config.target import TargetSpec
from prober.features.engines import context_reader
from prober.features.engines.context_reader import context_facts, read_context
from prober.measure.engines import CONTEXT_FACTS
from prober.probing.target import Target
from prober.results.facts import CONTEXT_NAMES, ENGINE_VERSION, Fact
from tests.serving import serving
from tests.virtual import make_clock

pytestmark = pytest.mark.virtual_time

SECRET = "sk-of-the-server"
SGLANG = {
    "model_path": "meta-llama/Llama-3.1-8B-Instruct",
    "tokenizer_path": "meta-llama/Llama-3.1-8B-Instruct",
    "api_key": SECRET,
    "dtype": "auto",
    "quantization": None,
    "tp_size": 2,
    "pp_size": 1,
    "dp_size": 1,
    "attention_backend": "fa3",
    "schedule_policy": "fcfs",
    "max_running_requests": 256,
    "revision": None,
    "internal_states": [{"api_key": SECRET}],
    "version": "0.5.3",
}
VLLM_CONFIG = {
    "model_config": {
        "model": "/models/llama",
        "tokenizer": "/models/llama",
        "revision": "0e9e39f",
        "dtype": "torch.bfloat16",
        "quantization": None,
    },
    "parallel_config": {"tensor_parallel_size": 4, "pipeline_parallel_size": 1, "data_parallel_size": 2},
    "scheduler_config": {"policy": "fcfs", "max_num_seqs": 1024},
    "speculative_config": None,
}
# Of a llama.cpp server that ran for this test.
PROPS = {
    "default_generation_settings": {"n_ctx": 2048},
    "total_slots": 4,
    "model_alias": "tiny",
    "model_ftype": "(guessed) all F32",
    "model_path": "/models/tiny.gguf",
    "chat_template": "{% for message in messages %}<|im_start|>{% endfor %}",
    "build_info": "b0-unknown",
}


def facts(engine: str, answers: dict[str, object], model: str = "llama") -> dict[str, str]:
    found = context_facts(CONTEXT_FACTS[engine], answers, model)
    assert len({fact.name for fact in found}) == len(found)
    return {fact.name: fact.value for fact in found}


def test_every_fact_is_one_of_a_result() -> None:
    """A name that nothing reads would be lost."""
    ranks = {"tensor_parallel", "pipeline_parallel", "data_parallel"}
    assert {fact.name for wanted in CONTEXT_FACTS.values() for fact in wanted} <= {
        *CONTEXT_NAMES,
        ENGINE_VERSION,
    } | ranks


def test_sglang_states_its_arguments_but_no_secret_is_kept() -> None:
    """`auto` and null name nothing."""
    found = facts("sglang", {"/server_info": SGLANG})
    assert found == {
        "engine_version": "0.5.3",
        "weights": "meta-llama/Llama-3.1-8B-Instruct",
        "tokenizer": "meta-llama/Llama-3.1-8B-Instruct",
        "attention_backend": "fa3",
        "scheduling_policy": "fcfs",
        "max_batch": "256",
        "parallelism": "TP 2, PP 1, DP 1",
        "gpu_count": "2",
    }


def test_vllm_states_its_configuration_in_development_mode() -> None:
    """A quantisation of null is that of a model that is not quantised; with data parallelism the GPUs are not counted."""
    found = facts(
        "vllm", {"/version": {"version": "0.32.0"}, "/server_info?config_format=json": {"vllm_config": VLLM_CONFIG}}
    )
    assert found == {
        "engine_version": "0.32.0",
        "weights": "/models/llama",
        "model_revision": "0e9e39f",
        "tokenizer": "/models/llama",
        "precision": "bfloat16",
        "quantization": "none",
        "scheduling_policy": "fcfs",
        "max_batch": "1024",
        "parallelism": "TP 4, PP 1, DP 2",
    }


def test_the_weights_are_those_of_the_requested_model() -> None:
    """Not those of the first entry, which may be another model."""
    models = {"data": [{"id": "other", "root": "/models/other"}, {"id": "llama", "root": "/models/llama"}]}
    assert facts("vllm", {"/v1/models": models})["weights"] == "/models/llama"
    assert "weights" not in facts("vllm", {"/v1/models": models}, model="third")


def test_llamacpp_states_its_properties() -> None:
    """Of the chat template a digest."""
    found = facts("llamacpp", {"/props": PROPS}, model="tiny")
    assert found["quantization"] == "all F32"
    assert (found["max_batch"], found["weights"]) == ("4", "/models/tiny.gguf")
    assert found["chat_template"].startswith("53 characters, sha256 ")


@pytest.mark.parametrize(
    "document", [None, [], 5, "text", {"version": {}}, {"version": [1]}, {"data": {"id": 1}}, {"data": [5]}]
)
def test_documents_of_another_form_have_no_facts(document: Any) -> None:
    """They are not an error either."""
    for engine, wanted in CONTEXT_FACTS.items():
        assert facts(engine, {fact.path: document for fact in wanted}) == {}


@asynccontextmanager
async def server(documents: dict[str, Any], owned_by: str) -> AsyncIterator[tuple[str, list[web.Request]]]:
    requests: list[web.Request] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        requests.append(request)
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "llama", "owned_by": owned_by}]})
        document = documents.get(request.path)
        if document == "hang":
            await asyncio.sleep(60)
        if isinstance(document, bytes):
            return web.Response(body=document)
        return web.json_response(document) if document is not None else web.Response(status=404)

    async with serving(answer) as url:
        yield url, requests


async def read(url: str) -> list[Fact]:
    clock = make_clock()
    try:
        return await read_context(
            Target(TargetSpec.model_validate({"url": url, "name": "t", "headers": {"X-Team": "a"}}), clock)
        )
    finally:
        clock.close()


async def test_a_document_is_read_once_and_its_older_name_only_without_it() -> None:
    """Headers of the target go along, as for its probes."""
    async with server({"/server_info": SGLANG, "/get_server_info": SGLANG}, "sglang") as (url, requests):
        found = await read(url)
        paths = [request.path for request in requests]
        assert paths.count("/server_info") == 1
        assert "/get_server_info" not in paths
        assert requests[-1].headers["X-Team"] == "a"
    assert Fact("parallelism", "TP 2, PP 1, DP 1", "/server_info") in found
    assert SECRET not in str(found)
    async with server({"/get_server_info": SGLANG}, "sglang") as (url, _):
        assert Fact(ENGINE_VERSION, "0.5.3", "/get_server_info") in await read(url)


async def test_hanging_large_and_broken_documents_leave_their_facts_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the time limit, and the others are read."""
    monkeypatch.setattr(context_reader, "TIMEOUT_S", 0.2)
    large = orjson.dumps({"version": "1" * (2 << 20)})
    async with server({"/version": {"version": "0.32.0"}, "/server_info": "hang"}, "vllm") as (url, _):
        assert [fact.name for fact in await read(url)] == [ENGINE_VERSION]
    for document in (large, b"\xff{", b"[" * 100_000):
        async with server({"/version": document}, "vllm") as (url, _):
            assert await read(url) == []


async def test_a_server_that_is_gone_has_no_facts() -> None:
    """And nothing is raised."""
    async with server({}, "vllm") as (url, _):
        pass
    assert await read(url) == []
