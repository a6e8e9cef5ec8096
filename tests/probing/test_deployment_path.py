"""An API like Azure's on a real socket: a deployment's path, `api-version` in every request, and a key in a header of its own."""

import logging
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from prober.cli.options import EndpointOptions
from prober.cli.target import target as cli_target
from prober.config.problems import ConfigError
from prober.config.target import TargetSpec
from prober.measure.outcome import Outcome
from tests.config.reading import loaded
from tests.probing.test_probe import probe
from tests.scripted import Asked, Script, scripted
from tests.wire.heads import EVENTS, body

pytestmark = pytest.mark.virtual_time
KEY = "k3y-of-the-deployment"
PATH = "/openai/deployments/large"
QUERY = "?api-version=2024-10-21"
CHUNKS = (
    '{"choices":[],"model":"","prompt_filter_results":[{"prompt_index":0}]}',
    '{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"model":"large-2024-08-06"}',
    '{"choices":[{"index":0,"delta":{"content":"hi"}}],"model":"large-2024-08-06"}',
    '{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"model":"large-2024-08-06"}',
    '{"choices":[],"model":"large-2024-08-06","usage":{"prompt_tokens":9,"completion_tokens":1}}',
    "[DONE]",
)


@dataclass
class Api:
    """A server that answers a deployment's path with the right version and key only. requests: (request line, headers)."""

    header: str = "api-key"
    key: str = KEY
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def reply(self, asked: Asked) -> Script:
        line = asked.head.partition(b"\r\n")[0].decode()
        self.requests.append((line, asked.headers))
        if line != f"POST {PATH}/chat/completions{QUERY} HTTP/1.1":
            return body("404 Resource Not Found", {"error": {"message": "not found"}})
        if (key := asked.headers.get(self.header)) != self.key:
            return body("401 Unauthorized", {"error": {"message": f"bad key {key}"}})
        return body("200 OK", "".join(f"data: {chunk}\n\n" for chunk in CHUNKS), EVENTS)


def spec(target: str) -> TargetSpec:
    text = f"targets: [{{name: t, connect_lead: 50ms, metrics: {{url: none}}, {target}}}]"
    return loaded(text).targets[0]


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    return path


async def test_a_deployment_is_probed_by_path_version_and_key(key_file: Path) -> None:
    """Every request has the version and the key; the list of models, which answers 404, is not needed."""
    api = Api()
    async with scripted(api.reply) as server:
        auth = f"auth: {{header: api-key, key_file: {key_file}}}"
        result = await probe(spec(f"url: '{server}{PATH}/{QUERY}', model: large, {auth}"))
    assert result.outcome is Outcome.OK, result.detail
    assert (result.model, result.timeline.answered_model) == ("large", "large-2024-08-06")
    assert any(line.startswith(f"GET {PATH}/models?") for line, _ in api.requests)
    assert api.requests[-1][0] == f"POST {PATH}/chat/completions{QUERY} HTTP/1.1"
    assert all(line.endswith(f"{QUERY} HTTP/1.1") for line, _ in api.requests)
    assert all(headers["api-key"] == KEY and "authorization" not in headers for _, headers in api.requests)


async def test_a_key_in_another_header_is_sent_there_only(key_file: Path) -> None:
    """As APIs like Anthropic's want it."""
    api = Api(header="x-api-key")
    async with scripted(api.reply) as server:
        auth = f"auth: {{header: X-Api-Key, key_file: {key_file}}}"
        result = await probe(spec(f"url: '{server}{PATH}{QUERY}', model: large, {auth}"))
    assert result.outcome is Outcome.OK, result.detail
    assert all("authorization" not in headers for _, headers in api.requests)


async def test_a_bearer_token_stays_the_default(key_file: Path) -> None:
    """Without `header` the secret is a bearer token."""
    api = Api(header="authorization", key=f"Bearer {KEY}")
    async with scripted(api.reply) as server:
        auth = f"auth: {{bearer_token_file: {key_file}}}"
        result = await probe(spec(f"url: '{server}{PATH}{QUERY}', model: large, {auth}"))
    assert result.outcome is Outcome.OK, result.detail


async def test_a_key_that_is_sent_back_is_redacted(key_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a bearer token is."""
    api = Api(key="another")
    with caplog.at_level(logging.DEBUG):
        async with scripted(api.reply) as server:
            auth = f"auth: {{header: api-key, key_file: {key_file}}}"
            result = await probe(spec(f"url: '{server}{PATH}{QUERY}', model: large, {auth}"))
    assert result.outcome is Outcome.REJECTED
    assert "bad key …" in result.detail
    assert KEY not in caplog.text + repr(result)


async def test_a_missing_key_file_is_named() -> None:
    """By the key of the configuration that names it; nothing is sent."""
    api = Api()
    async with scripted(api.reply) as server:
        result = await probe(
            spec(f"url: '{server}{PATH}{QUERY}', model: large, auth: {{header: api-key, key_file: /no/key}}")
        )
    assert result.outcome is Outcome.REJECTED
    assert "auth.key_file /no/key" in result.detail
    assert not [line for line, _ in api.requests if line.startswith("POST")]


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("auth: {header: api-key}", "auth: needs header and key_file together; add the other one"),
        ("auth: {key_file: k}", "auth: needs header and key_file together; add the other one"),
        (
            "auth: {header: api-key, key_file: k, bearer_token_file: t}",
            "auth.bearer_token_file: is one of two ways; remove it, or header and key_file",
        ),
        ("auth: {}", "auth.bearer_token_file: needed, but not given"),
        ("auth: {header: 'api key', key_file: k}", "auth.header: 'api key' is not a header name"),
        ("auth: {header: Host, key_file: k}", "auth.header: is set by the prober itself; remove it"),
        (
            "auth: {header: api-key, key_file: k}, headers: {Api-Key: v}",
            "headers.Api-Key: is set by the prober itself; remove it",
        ),
    ],
)
def test_a_mistake_is_named(target: str, message: str) -> None:
    """By its key, with what to write."""
    with pytest.raises(ConfigError) as problem:
        spec(f"url: http://h, {target}")
    assert str(problem.value) == f"c:1: targets[0].{message}"


@pytest.mark.parametrize(
    "url", ["http://h/p?key=1", "http://h/p?api-version=1&key=2", "http://h/p?api-version=1 2", "http://h/p?a#b"]
)
def test_other_queries_are_refused(url: str) -> None:
    """They may hold secrets, and an address is shown."""
    with pytest.raises(ConfigError, match="has a query or fragment"):
        spec(f"url: '{url}'")


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("https://h?api-version=1", "https://h/v1?api-version=1"),
        ("https://h/?api-version=1", "https://h/v1?api-version=1"),
        ("https://h/a/b/?api-version=2024-10-01-preview", "https://h/a/b?api-version=2024-10-01-preview"),
    ],
)
def test_the_version_follows_the_path(url: str, base: str) -> None:
    """It is a part of the address, so that two versions are two addresses."""
    assert spec(f"url: '{url}'").url == base


def test_a_key_in_a_header_is_for_targets_only() -> None:
    """Grafana and discovery take bearer tokens."""
    text = "grafana: {url: http://g, auth: {header: a, key_file: k}}\ntargets: [{url: http://h}]"
    with pytest.raises(ConfigError, match=r"grafana\.auth\.header: is for targets only; use bearer_token_file"):
        loaded(text)


@pytest.mark.parametrize(
    ("url", "base", "api"),
    [
        ("https://api.anthropic.com/v1/messages", "https://api.anthropic.com/v1", "messages"),
        ("https://api.openai.com/v1/chat/completions/", "https://api.openai.com/v1", "chat"),
        ("https://api.openai.com/v1/responses", "https://api.openai.com/v1", "responses"),
        ("http://h:8000/v1/completions", "http://h:8000/v1", "completions"),
        ("http://h/chat/completions", "http://h", "chat"),
        (f"http://h{PATH}/chat/completions{QUERY}", f"http://h{PATH}{QUERY}", "chat"),
        (f"http://h/openai/responses{QUERY}", f"http://h/openai{QUERY}", "responses"),
        ("http://messages", "http://messages/v1", "chat"),
        ("http://h/v1/messages-of-today", "http://h/v1/messages-of-today", "chat"),
        ("http://h/v1", "http://h/v1", "chat"),
    ],
)
def test_a_url_of_an_api_is_its_base_and_names_the_api(url: str, base: str, api: str) -> None:
    """As documentation shows it; the same API may be named as well, and a base URL is that of chat unless `api` says more."""
    assert [(found.url, found.api) for found in (spec(f"url: '{url}'"), spec(f"url: '{url}', api: {api}"))] == [
        (base, api)
    ] * 2
    assert cli_target("once", url, EndpointOptions()).api == api


def test_an_api_that_contradicts_the_url_is_named() -> None:
    """By its key or its option."""
    text = "is messages, but the URL ends in /chat/completions, which is chat; remove one of the two"
    with pytest.raises(ConfigError) as problem:
        spec("url: http://h/v1/chat/completions, api: messages")
    assert str(problem.value) == f"c:1: targets[0].api: {text}"
    with pytest.raises(ConfigError) as problem:
        cli_target("once", "http://h/v1/chat/completions", EndpointOptions(api="messages"))
    assert str(problem.value) == f"prober once: --api: {text}"


async def test_a_url_of_an_api_is_probed_there(key_file: Path) -> None:
    """And nowhere else."""
    api = Api()
    async with scripted(api.reply) as server:
        auth = f"auth: {{header: api-key, key_file: {key_file}}}"
        result = await probe(spec(f"url: '{server}{PATH}/chat/completions{QUERY}', model: large, {auth}"))
    assert result.outcome is Outcome.OK, result.detail
    assert [line for line, _ in api.requests if line.startswith("POST")] == [
        f"POST {PATH}/chat/completions{QUERY} HTTP/1.1"
    ]
