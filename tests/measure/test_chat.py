"""What is sent to each engine."""

import json
from typing import Any

import pytest

from prober.measure.chat import Dialect, Malformed, Usage, error_message, parse_answer, parse_chunk, request_body
from prober.measure.engines import DIALECTS, GENERIC, detect


def body(dialect: Dialect, salt: str | None = "n") -> dict[str, Any]:
    raw = request_body(
        dialect,
        api="chat",
        model="m",
        messages=(("user", "hi"),),
        max_tokens=9,
        stream=True,
        sampling={"temperature": 0},
        salt=salt,
        user="u",
    )
    document: dict[str, Any] = json.loads(raw)
    return document


@pytest.mark.parametrize("name", DIALECTS)
def test_no_seed_is_ever_sent(name: str) -> None:
    """A seed has killed a real engine."""
    assert "seed" not in body(DIALECTS[name])


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("vllm", {"ignore_eos": True, "min_tokens": 9, "cache_salt": "n"}),
        ("sglang", {"ignore_eos": True, "min_tokens": 9, "cache_salt": "n"}),
        ("lmdeploy", {"ignore_eos": True, "min_new_tokens": 9}),
        ("llamacpp", {"ignore_eos": True, "cache_prompt": False}),
        ("openai", {}),
    ],
)
def test_lengths_are_forced_and_caches_passed_by_as_each_engine_wants(name: str, sent: dict[str, Any]) -> None:
    """The fields are those the engine knows, and no others."""
    extra = set(body(DIALECTS[name])) - {
        "model",
        "temperature",
        "max_tokens",
        "stream",
        "messages",
        "stream_options",
        "user",
    }
    assert {key: body(DIALECTS[name])[key] for key in extra} == sent


def test_a_warm_prompt_is_not_kept_from_the_cache() -> None:
    """Without a salt the prefix cache may work."""
    assert "cache_salt" not in body(DIALECTS["vllm"], salt=None)


def test_transformers_gets_nothing_beyond_the_specification() -> None:
    """It answers 422 to fields it does not know."""
    assert set(body(DIALECTS["transformers"])) == {"model", "temperature", "max_tokens", "stream", "messages"}


def test_engines_are_told_apart_by_what_they_say() -> None:
    """By `owned_by`, by a header of their own, else nothing is assumed."""
    assert detect("vllm", {}).name == "vllm"
    assert detect("openai", {"x-litellm-version": "1"}).name == "litellm"
    assert detect("somebody", {}) is GENERIC


@pytest.mark.parametrize(
    ("document", "prompt", "completion", "cached"),
    [
        (
            {
                "choices": [],
                "usage": {"prompt_tokens": 5, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}},
            },
            5,
            3,
            4,
        ),
        ({"choices": [{"index": 0, "delta": {}}], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}, 5, 3, None),
        (
            {
                "choices": [{"delta": {}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 5, "completion_tokens": 3},
            },
            5,
            3,
            None,
        ),
        ({"choices": [{"delta": {}}], "timings": {"prompt_n": 5, "predicted_n": 3}}, 5, 3, None),
    ],
)
def test_usage_is_found_wherever_it_stands(
    document: dict[str, Any], prompt: int, completion: int, cached: int | None
) -> None:
    """Beside no choices, beside an empty delta, beside the finish reason, or as llama.cpp's timings."""
    usage = parse_chunk(json.dumps(document).encode()).usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (prompt, completion, cached)


def test_a_usage_of_zeros_is_none() -> None:
    """Ollama's completions carry one on each chunk."""
    assert parse_chunk(b'{"choices":[{"text":"a"}],"usage":{"prompt_tokens":0,"completion_tokens":0}}').usage is None


def test_llama_cpp_counts_the_cached_prompt_apart() -> None:
    """Its `prompt_n` is what it had to process; the prompt is that and what it found in its cache."""
    payload = b'{"choices":[{"delta":{}}],"timings":{"prompt_n":1,"cache_n":99,"predicted_n":3}}'
    assert parse_chunk(payload).usage == Usage(100, 3, 99)


@pytest.mark.parametrize(
    ("delta", "generated", "answer"),
    [
        ({"role": "assistant"}, False, False),
        ({"role": "assistant", "content": ""}, False, False),
        ({"role": "assistant", "content": None, "reasoning_content": None, "tool_calls": None}, False, False),
        ({"content": "", "reasoning_content": ""}, False, False),
        ({"content": " "}, True, True),
        ({"role": "assistant", "content": "a", "reasoning_content": None}, True, True),
        ({"content": None, "reasoning_content": "hm"}, True, False),
        ({"reasoning": "hm"}, True, False),
        ({"refusal": "no"}, True, True),
        ({"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}, True, True),
    ],
)
def test_content_is_told_from_what_is_none(delta: dict[str, Any], generated: bool, answer: bool) -> None:
    """Roles and empty or null fields are no content; reasoning is content and no answer."""
    chunk = parse_chunk(json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}).encode())
    assert (chunk.generated, chunk.answer, chunk.finish_reason) == (generated, answer, None)


@pytest.mark.parametrize(
    "error",
    [
        {"error": {"message": "died", "code": "500"}},
        {"error": {"code": 500, "message": "died", "type": "server_error"}, "choices": []},
        {"error": "died"},
        {"object": "error", "message": "died"},
    ],
)
def test_an_error_object_is_found_in_every_form(error: dict[str, Any]) -> None:
    """As an object, as a string, or as the document itself; in a stream, a whole answer and an error's body alike."""
    payload = json.dumps(error).encode()
    assert parse_chunk(payload).error == parse_answer(payload).error == error_message(payload) == "died"


def test_an_error_that_is_null_is_none() -> None:
    """A field that is always there says nothing."""
    assert parse_chunk(b'{"error":null,"choices":[{"text":"a"}]}').text == "a"


@pytest.mark.parametrize(
    "payload", [b"", b"{", b"[]", b"null", b'{"choices":[1]}', b'{"choices":7}', b'{"choices":[{"delta":"a"}]}']
)
def test_what_is_no_chunk_is_refused(payload: bytes) -> None:
    """Anything but an object of the expected form raises Malformed, and nothing else."""
    with pytest.raises(Malformed):
        parse_chunk(payload)


@pytest.mark.parametrize("payload", [b"", b"[1]", b"7", b'"no"', b"<html>\n no  such page", b"\xff\xfe", b"x" * 5000])
def test_an_error_body_of_any_kind_is_shown_in_short(payload: bytes) -> None:
    """What is not an error object is shown as it is, on one line and bounded."""
    said = error_message(payload)
    assert len(said) <= 300
    assert "\n" not in said


@pytest.mark.parametrize("name", DIALECTS)
def test_a_plain_request_asks_for_no_stream(name: str) -> None:
    """Without a stream there are no stream options, and completions take one prompt."""
    raw = request_body(
        DIALECTS[name],
        api="completions",
        model="m",
        messages=(("system", "a"), ("user", "b")),
        max_tokens=9,
        stream=False,
        sampling={"max_tokens": 1, "stream": True},
        salt=None,
        user="u",
    )
    document = json.loads(raw)
    assert document["prompt"] == "a\nb"
    assert (document["max_tokens"], document["stream"]) == (9, False)
    assert not {"messages", "stream_options"} & set(document)


@pytest.mark.parametrize("count", [2**63, 2**64 - 1, 10**30, -1, True, 1.5, "7"])
def test_a_count_that_is_none_is_not_taken(count: Any) -> None:
    """A number of tokens that no answer has would poison counters and timelines: it counts as not told."""
    usage = parse_chunk(
        json.dumps({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": count}}).encode()
    ).usage
    assert usage == Usage(3, None)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"choices":[{"delta":{"content":%s}}]}',
        b'{"choices":[{"delta":{"reasoning":%s}}]}',
        b'{"choices":[{"delta":{"tool_calls":%s}}]}',
        b'{"choices":[{"delta":{},"finish_reason":%s}]}',
        b'{"error":%s}',
        b'{"error":{"message":%s}}',
    ],
)
@pytest.mark.parametrize("depth", [255, 1_000])
def test_what_is_nested_too_deeply_is_malformed(payload: bytes, depth: int) -> None:
    """A document that can be read but not written again is the server's fault, not the prober's."""
    document = payload % (b"[" * depth + b"1" + b"]" * depth)
    with pytest.raises(Malformed):
        parse_chunk(document)
    assert len(error_message(document)) <= 300


def test_what_a_server_says_of_itself_is_kept_in_short() -> None:
    """A reason or an error of a megabyte would be kept with every probe."""
    long = "x" * 1_000_000
    assert (
        len(parse_chunk(json.dumps({"choices": [{"delta": {}, "finish_reason": long}]}).encode()).finish_reason or "")
        == 300
    )
    assert len(parse_chunk(json.dumps({"error": {"message": long}}).encode()).error or "") == 300
    assert (
        len(
            parse_answer(json.dumps({"choices": [{"message": {}, "finish_reason": long}]}).encode()).finish_reason or ""
        )
        == 300
    )
