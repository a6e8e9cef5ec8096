"""Request bodies per engine, and parsing of chunks, answers and errors."""

import json
from contextlib import suppress
from typing import Any

import pytest

from prober.measure.api import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Api
from prober.measure.chat import Dialect, parse_answer, parse_event, request_body
from prober.measure.chunk import NO_COUNT, Chunk, Usage
from prober.measure.engines import DIALECTS, GENERIC, detect
from prober.measure.payload import Malformed, error_message
from prober.measure.request import Message, Request


def asking(messages: tuple[Message, ...], sampling: dict[str, Any], *, warm: bool = False) -> Request:
    return Request("n", 0, "w", 5, 9, messages, sampling, warm)


USAGE = {"prompt_tokens": 5, "completion_tokens": 3}


def chunk(document: Any) -> Chunk:
    return parse_event(b"", json.dumps(document).encode())


def body(dialect: Dialect, salt: str | None = "n") -> dict[str, Any]:
    request = asking((("user", "hi"),), {"temperature": 0}, warm=salt is None)
    document: dict[str, Any] = json.loads(request_body(dialect, request, "m", True, is_chat=True))
    return document


@pytest.mark.parametrize("name", DIALECTS)
def test_no_seed_is_sent(name: str) -> None:
    """No request contains a seed: it has crashed a real engine."""
    assert "seed" not in body(DIALECTS[name])


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("vllm", {"ignore_eos": True, "min_tokens": 9, "cache_salt": "n"}),
        ("sglang", {"ignore_eos": True, "min_tokens": 9, "cache_salt": "n"}),
        ("lmdeploy", {"ignore_eos": True, "min_new_tokens": 9}),
        ("llamacpp", {"ignore_eos": True, "cache_prompt": False}),
        ("openai", {}),
    ],
)
def test_length_and_cache_fields_are_those_of_the_engine(name: str, fields: dict[str, Any]) -> None:
    """A request contains the fields that the engine supports to force the length and bypass the cache, and no others."""
    extra = set(body(DIALECTS[name])) - {
        "model",
        "temperature",
        "max_tokens",
        "stream",
        "messages",
        "stream_options",
        "user",
    }
    assert {key: body(DIALECTS[name])[key] for key in extra} == fields


def test_without_salt_the_prefix_cache_is_allowed() -> None:
    """A warm prompt is sent without a cache salt."""
    assert "cache_salt" not in body(DIALECTS["vllm"], salt=None)


def test_transformers_receives_only_standard_fields() -> None:
    """The server answers 422 to unknown fields."""
    assert set(body(DIALECTS["transformers"])) == {"model", "temperature", "max_tokens", "stream", "messages"}


def test_engines_are_detected_by_owned_by_or_header() -> None:
    """An engine is detected by `owned_by` or by its own response header; otherwise the dialect is generic."""
    assert detect("vllm", {}).name == "vllm"
    assert detect("openai", {"x-litellm-version": "1"}).name == "litellm"
    assert detect("somebody", {}) is GENERIC


@pytest.mark.parametrize(
    ("document", "cached"),
    [
        ({"choices": [], "usage": USAGE | {"prompt_tokens_details": {"cached_tokens": 4}}}, 4),
        ({"choices": [{"index": 0, "delta": {}}], "usage": USAGE}, None),
        ({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": USAGE}, None),
        ({"choices": [{"delta": {}}], "timings": {"prompt_n": 5, "predicted_n": 3}}, None),
    ],
)
def test_usage_is_found_in_every_position(document: dict[str, Any], cached: int | None) -> None:
    """Usage is read without choices, next to an empty delta, next to the finish reason, and from llama.cpp's timings."""
    assert chunk(document).usage == Usage(5, 3, cached)


@pytest.mark.parametrize(
    "place", [{"usage": USAGE}, {"choices": [{"usage": USAGE}]}, {"x_groq": {"id": "r", "usage": USAGE}}]
)
def test_a_usage_is_read_where_a_server_puts_it(place: dict[str, Any]) -> None:
    """OpenAI's place, Moonshot's in the choice, and Groq's."""
    assert chunk({"choices": [{"text": "a"}], **place}).usage == Usage(5, 3)


def test_llama_cpp_cached_tokens_are_added_to_the_prompt() -> None:
    """llama.cpp's `prompt_n` counts processed tokens only; the prompt is `prompt_n` + `cache_n`."""
    payload = b'{"choices":[{"delta":{}}],"timings":{"prompt_n":1,"cache_n":99,"predicted_n":3}}'
    assert parse_event(b"", payload).usage == Usage(100, 3, 99)


@pytest.mark.parametrize(
    ("error", "kinds"),
    [
        ({"error": {"message": "died", "code": "500"}}, "500"),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "died"}}, "overloaded_error"),
        ({"error": {"error": {"message": "died"}}}, ""),
        ({"error": ["died"]}, ""),
        ({"detail": "died"}, ""),
        ({"detail": [{"loc": ["body"], "msg": "died", "type": "value_error"}]}, "value_error"),
        ({"message": "died", "__type": "ThrottlingException"}, "ThrottlingException"),
        ({"Message": "died", "code": "AccessDenied"}, "AccessDenied"),
        ({"success": False, "errors": [{"code": 7003, "message": "died"}], "result": None}, "7003"),
        ({"type": "about:blank", "title": "Busy", "status": 503, "detail": "died"}, "503"),
        ({"fault": {"faultstring": "died", "detail": {"errorcode": "x"}}}, ""),
        ({"base_resp": {"status_code": 1004, "status_msg": "died"}}, "1004"),
        ({"error_code": 18, "error_msg": "died"}, "18"),
        ({"choices": [{"index": 0, "delta": {"content": ""}, "error": {"code": 502, "message": "died"}}]}, "502"),
        ({"error": {"code": 500, "message": "died", "type": "server_error"}, "choices": []}, "server_error, 500"),
        ({"error": {"code": "died", "message": "died", "type": "died"}}, ""),
        ({"error": {"code": "a b\u202e", "message": "died", "type": True}}, ""),
        ({"error": "died"}, ""),
        ({"error": "died", "code": 503}, "503"),
        ({"object": "error", "message": "died"}, ""),
    ],
)
def test_an_error_object_is_recognised_in_every_form(error: dict[str, Any], kinds: str) -> None:
    """An error is an object, a string or the document itself, in a stream, an answer or a refusal; its type and code are shown."""
    payload, words = json.dumps(error).encode(), f"died ({kinds})" if kinds else "died"
    assert parse_event(b"", payload).error == parse_answer(payload).error == error_message(payload) == words


@pytest.mark.parametrize("choices", ["[null]", "[1]", '["a"]', "[[]]", "[null, 0]"])
def test_choices_that_are_no_objects_are_none(choices: str) -> None:
    """Nothing is read of them, and the usage beside them counts; an object beside them is read."""
    beside = b'"usage":{"prompt_tokens":8,"completion_tokens":4}}'
    assert parse_event(b"", f'{{"choices":{choices},'.encode() + beside) == Chunk(usage=Usage(8, 4))
    assert parse_event(b"", f'{{"choices":{choices[:-1]}, {{"text":"a"}}],'.encode() + beside).text == "a"
    with pytest.raises(Malformed):
        parse_answer(f'{{"choices":{choices}}}'.encode())


@pytest.mark.parametrize("payload", [b"", b"{", b"[]", b"null", b'{"choices":7}', b'{"choices":[{"delta":"a"}]}'])
def test_an_invalid_chunk_raises_malformed(payload: bytes) -> None:
    """Anything but an object of the expected form raises Malformed and no other exception."""
    with pytest.raises(Malformed):
        parse_event(b"", payload)


@pytest.mark.parametrize("payload", [b"", b"[1]", b"7", b'"no"', b"<html>\n no  such page", b"\xff\xfe", b"x" * 5000])
def test_any_error_body_gives_a_short_message(payload: bytes) -> None:
    """A body that is not an error object is quoted on one line of at most 300 characters."""
    message = error_message(payload)
    assert len(message) <= 300
    assert "\n" not in message


@pytest.mark.parametrize("name", DIALECTS)
def test_a_request_without_stream_has_no_stream_options(name: str) -> None:
    """With `stream: false` there are no stream options; completions get one prompt; sampling cannot override either."""
    sampling = {"max_tokens": 1, "stream": True}
    request = asking((("system", "a"), ("user", "b")), sampling, warm=True)
    document = json.loads(request_body(DIALECTS[name], request, "m", False, is_chat=False))
    assert document["prompt"] == "a\nb"
    assert (document["max_tokens"], document["stream"]) == (9, False)
    assert not {"messages", "stream_options"} & set(document)


@pytest.mark.parametrize("count", [2**63, 2**64 - 1, 10**30, -1, True, 1.5, "7"])
def test_an_invalid_token_count_is_no_count(count: Any) -> None:
    """An impossible number of tokens would corrupt counters and timelines; it makes the usage unusable."""
    usage = {"prompt_tokens": 3, "completion_tokens": count}
    assert chunk({"choices": [], "usage": usage}).usage == Usage(3, NO_COUNT)


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
@pytest.mark.parametrize("depth", [255, 1_000, 100_000])
def test_a_value_nested_too_deeply_does_no_harm(payload: bytes, depth: int) -> None:
    """It is malformed, or no content; it does not crash the prober."""
    document = payload % (b"[" * depth + b"1" + b"]" * depth)
    with suppress(Malformed):
        assert not parse_event(b"", document).has_content
    assert len(error_message(document)) <= 300


def test_finish_reasons_and_errors_are_shortened() -> None:
    """They are stored with every probe, so a server must not fill the memory with a finish reason of a megabyte."""
    long = "x" * 1_000_000
    whole = {"choices": [{"message": {}, "finish_reason": long}]}
    for text in (
        chunk({"choices": [{"delta": {}, "finish_reason": long}]}).finish_reason,
        chunk({"error": {"message": long}}).error,
        parse_answer(json.dumps(whole).encode()).finish_reason,
    ):
        assert text is not None
        assert len(text) == 300


def test_bodies_of_the_other_apis() -> None:
    """The Responses API limits `max_output_tokens` and stores nothing, the Messages API has system messages apart."""
    messages = (("system", "a"), ("user", "b"))
    request = asking(messages, {"temperature": 0})
    shared = {"model": "m", "temperature": 0, "stream": True}
    assert json.loads(RESPONSES.request_body(DIALECTS["vllm"], request, "m", True)) == shared | {
        "input": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}],
        "max_output_tokens": 9,
        "store": False,
        "user": "llm-slo-prober",
        "cache_salt": "n",
    }
    assert json.loads(MESSAGES.request_body(DIALECTS["vllm"], request, "m", True)) == shared | {
        "messages": [{"role": "user", "content": "b"}],
        "system": "a",
        "max_tokens": 9,
        "metadata": {"user_id": "llm-slo-prober"},
    }


@pytest.mark.parametrize(
    ("api", "sampling", "absent", "present"),
    [
        (CHAT, {"user": None, "stream_options": None}, {"user", "stream_options"}, {"max_tokens": 9, "stream": True}),
        (CHAT, {"temperature": None, "user": "mine"}, {"temperature"}, {"user": "mine"}),
        (CHAT, {"max_tokens": None}, {"max_tokens"}, {"max_completion_tokens": 9, "ignore_eos": True, "min_tokens": 9}),
        (CHAT, {"max_completion_tokens": 5, "max_tokens": None}, {"max_tokens"}, {"max_completion_tokens": 9}),
        (CHAT, dict.fromkeys(("model", "stream", "messages", "ignore_eos")), set(), {"model": "m", "ignore_eos": True}),
        (COMPLETIONS, {"max_tokens": None}, {"max_completion_tokens"}, {"max_tokens": 9, "prompt": "b"}),
        (
            RESPONSES,
            {"store": None, "max_output_tokens": None},
            {"store"},
            {"max_output_tokens": 9, "user": "llm-slo-prober"},
        ),
        (MESSAGES, {"metadata": None, "max_tokens": None}, {"metadata"}, {"max_tokens": 9}),
    ],
)
def test_null_in_sampling_removes_a_field_that_the_prober_can_do_without(
    api: Api, sampling: dict[str, Any], absent: set[str], present: dict[str, Any]
) -> None:
    """Whoever has set it; model, prompt, stream, the forced length and the limit stay, the limit of chat under its other name."""
    request = asking((("user", "b"),), sampling)
    document = json.loads(api.request_body(DIALECTS["vllm"], request, "m", True))
    assert not absent & document.keys()
    assert document.items() >= present.items()
    assert None not in document.values()


def test_details_of_reasoning_with_a_type_that_is_no_text_hide_nothing() -> None:
    """A server may write anything there; the answer is read all the same."""
    delta = {"content": "a", "reasoning_details": [{"type": {"a": 1}}]}
    parsed = parse_event(b"", json.dumps({"choices": [{"delta": delta}]}).encode())
    assert (parsed.answer, parsed.hides_reasoning) == ("a", False)
