"""The service tier that an answer names, in the forms of the API references of OpenAI and Anthropic, and of vLLM."""

import json
from typing import Any

import pytest

from prober.measure.api import CHAT, MESSAGES, RESPONSES, Api
from prober.measure.payload import service_tier
from prober.measure.recording import Recording
from prober.measure.timeline import Timeline


def chunk(content: str | None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chunk as in OpenAI's reference."""
    delta = {} if content is None else {"role": "assistant", "content": content}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    head = {"id": "chatcmpl-123", "object": "chat.completion.chunk", "created": 1694268190, "model": "gpt-5"}
    return {**head, "system_fingerprint": "fp_44709d6fcb", "choices": [choice], **more}


def chat(tier: Any) -> list[dict[str, Any]]:
    return [chunk("Hello", service_tier=tier), chunk(None, "stop", service_tier=tier)]


def responses(asked: Any, used: Any) -> list[dict[str, Any]]:
    """The tier that was asked for is in the first event, the one that was used in the last."""
    usage = {"input_tokens": 8, "output_tokens": 1, "total_tokens": 9}
    response = {"id": "resp_1", "object": "response", "model": "gpt-5", "output": []}
    return [
        {"type": "response.created", "response": {**response, "status": "in_progress", "service_tier": asked}},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "Hello"},
        {
            "type": "response.completed",
            "response": {**response, "status": "completed", "service_tier": used, "usage": usage},
        },
    ]


def messages(**usage: Any) -> list[dict[str, Any]]:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "model": "claude-opus-4-6"}
    tokens = {"input_tokens": 8, "output_tokens": 1, "cache_read_input_tokens": 0, **usage}
    return [
        {"type": "message_start", "message": {**message, "stop_reason": None, "usage": tokens}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}},
        {"type": "message_stop"},
    ]


@pytest.mark.parametrize(
    ("api", "events", "tier"),
    [
        (CHAT, chat("default"), "default"),
        (CHAT, [chunk("Hello"), chunk(None, "stop"), chunk("", choices=[], service_tier="flex")], "flex"),
        (CHAT, chat(None), ""),
        (CHAT, [chunk("Hello"), chunk(None, "stop")], ""),
        (CHAT, chat("auto"), ""),
        (CHAT, chat("platinum"), "other"),
        (CHAT, chat("x" * 100_000), "other"),
        (CHAT, chat(["default"]), "other"),
        (RESPONSES, responses("auto", "default"), "default"),
        (RESPONSES, responses("priority", "default"), "default"),
        (RESPONSES, responses("auto", "auto"), ""),  # vLLM 0.32 repeats what was asked
        (RESPONSES, responses("flex", None), ""),
        (MESSAGES, messages(service_tier="standard"), "standard"),
        (MESSAGES, messages(service_tier="priority"), "priority"),
        (MESSAGES, messages(), ""),
    ],
)
def test_the_tier_is_the_one_that_was_used(api: Api, events: list[dict[str, Any]], tier: str) -> None:
    """From a closed list, as servers may name anything; absent where the answer does not tell. The answer counts all the same."""
    recording = Recording(api=api)
    for event in events:
        recording.feed(0, b"data: " + json.dumps(event).encode() + b"\n\n")
    recording.finish()
    assert recording.complete(Timeline(0)).service_tier == tier
    assert (recording.answer.text, recording.malformed) == ("Hello", None)


def test_results_share_the_names_of_tiers() -> None:
    """A history has thousands of results."""
    first, second = (service_tier(json.loads('"priority"')) for _ in range(2))
    assert first is second
