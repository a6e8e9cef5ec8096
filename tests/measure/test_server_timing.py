"""Parts of a probe's time: what servers said in captured answers, and what is dropped because it cannot be true."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prober.measure.api import CHAT
from prober.measure.recording import Recording
from prober.measure.responses import parse_answer as parse_response
from prober.measure.server_timing import NO_PARTS, PARTS, Spans, TimeParts, reported_parts, time_parts
from prober.measure.timeline import Timeline

MS = 1_000_000
STREAMS = Path(__file__).parent.parent / "streams"
VLLM, LLAMA, LITELLM = (
    "vllm_0.32_chat_continuous_usage.http",
    "llamacpp_chat_timings.http",
    "litellm_1.108.7_chat_timing.http",
)
SPANS = Spans(network_s=0.002, headers_s=0.050, first_s=0.320, end_s=0.860)
QUEUED = TimeParts(queue_s=0.240, prefill_s=0.061, decode_s=0.530)


def captured(name: str) -> tuple[dict[str, str], TimeParts]:
    """(headers, parts reported in the body) of a captured answer."""
    head, _, body = (STREAMS / name).read_bytes().partition(b"\r\n\r\n")
    lines = [line.partition(":") for line in head.decode().splitlines()[1:]]
    recording = Recording()
    recording.feed(MS, body)
    recording.finish("text/event-stream")
    assert recording.answer.finish_reason in ("length", "stop")
    return {key.lower(): value.strip() for key, _, value in lines}, recording.answer.timing


def body(metrics: Mapping[str, Any]) -> TimeParts | None:
    return reported_parts({"metrics": metrics})


def test_the_parts_are_a_closed_list() -> None:
    """Each is a value of the label `part`."""
    assert PARTS == ("network", "gateway", "until_headers", "queue", "prefill", "decode")


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (VLLM, TimeParts(queue_s=0.000_115_792, prefill_s=0.072_468_614, decode_s=0.029_270_244)),
        (LLAMA, TimeParts(prefill_s=0.000_869, decode_s=0.000_417)),
        (LITELLM, NO_PARTS),
        ("litellm_1.106.2_chat.http", NO_PARTS),
    ],
)
def test_bodies_of_real_servers_are_read(name: str, parts: TimeParts) -> None:
    """vLLM with its flag and llama.cpp; LiteLLM says nothing in the body, also of the vLLM behind it."""
    _, reported = captured(name)
    assert [None if value is None else round(value, 9) for value in reported] == list(parts)


def test_headers_of_a_real_gateway_are_read() -> None:
    """LiteLLM's own time, and the time until the engine behind it sent headers, which is not its prefill."""
    headers, reported = captured(LITELLM)
    parts = time_parts(headers, reported, SPANS._replace(headers_s=0.160))
    assert parts == TimeParts(0.002, 0.0678611, 0.077928)
    assert time_parts(captured(VLLM)[0], NO_PARTS, SPANS) is None, "its headers say nothing"


def test_an_unstreamed_answer_tells_too() -> None:
    """Of the chat API, and of the responses API, whose whole answer is an object in its last event."""
    metrics = b'"metrics": {"queue_time_ms": 240, "time_to_first_token_ms": 61.0, "generation_time_ms": 530}'
    chat = b'{"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}], ' + metrics + b"}"
    response = b'{"status": "completed", "output": [], ' + metrics + b"}"
    assert CHAT.parse_answer(chat).timing == parse_response(response).timing == QUEUED


def test_a_stream_that_broke_off_has_the_parts_that_it_told() -> None:
    """Of the headers only, as the body tells at its end."""
    recording = Recording()
    recording.feed(MS, b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n')
    recording.cut()
    timeline = Timeline(
        0, sent_ns=0, acknowledged_ns=2 * MS, headers_ns=50 * MS, content_ns=(MS * 60,), first_ns=60 * MS
    )
    headers = {"x-litellm-overhead-duration-ms": "11.5"}
    assert time_parts(headers, recording.answer.timing, timeline.spans) == TimeParts(0.002, 0.0115)


def test_the_parts_of_a_whole_way() -> None:
    """Network, gateway, queue, prefill and decode, with the rest unexplained."""
    parts = time_parts({"x-litellm-overhead-duration-ms": "11"}, QUEUED, SPANS)
    assert parts == TimeParts(0.002, 0.011, None, 0.240, 0.061, 0.530)
    timeline = Timeline(0, sent_ns=0, end_ns=860 * MS, parts=parts)
    words = "network 2 ms, gateway 11 ms, queue 240 ms, prefill 61 ms, decode 530 ms, unexplained 16 ms"
    assert timeline.parts_text == words
    assert replace(timeline, end_ns=None).parts_text == words.removesuffix(", unexplained 16 ms")
    assert replace(timeline, parts=None).parts_text == ""
    early = replace(timeline, parts=TimeParts(until_headers_s=0.003))
    assert early.parts_text == "server until its headers 3 ms, unexplained 857 ms"


@pytest.mark.parametrize(
    ("headers", "reported", "expected"),
    [
        # Envoy: what it took itself is the time to the headers without the network and the server behind it.
        ({"x-envoy-upstream-service-time": "30"}, NO_PARTS, TimeParts(0.002, 0.018, 0.030)),
        ({"x-envoy-upstream-service-time": "30"}, QUEUED, TimeParts(0.002, 0.018, None, 0.240, 0.061, 0.530)),
        ({"x-envoy-upstream-service-time": "49"}, NO_PARTS, TimeParts(0.002, None, 0.049)),
        # Envoy before LiteLLM before OpenAI: the innermost server's time, and both gateways'.
        (
            {
                "x-envoy-upstream-service-time": "40",
                "x-litellm-overhead-duration-ms": "5.5",
                "x-litellm-timing-llm-api-ms": "30.2",
                "openai-processing-ms": "25",
            },
            NO_PARTS,
            TimeParts(0.002, 0.0135, 0.025),
        ),
        (
            {"x-envoy-upstream-service-time": "49", "x-litellm-overhead-duration-ms": "1"},
            NO_PARTS,
            TimeParts(None, 0.001, 0.049),
        ),
        ({"openai-processing-ms": "45"}, NO_PARTS, TimeParts(0.002, None, 0.045)),
    ],
)
def test_times_that_overlap_are_never_added(headers: dict[str, str], reported: TimeParts, expected: TimeParts) -> None:
    """Envoy's time ends with the headers of the server behind it, and may contain its queue and prefill."""
    parts = time_parts(headers, reported, SPANS)
    assert parts is not None
    assert parts == pytest.approx(expected)
    assert sum(parts.known().values()) <= 0.860


def test_without_the_network_nothing_is_ascribed_to_envoy() -> None:
    """Its own time and the network's cannot be told apart then."""
    headers = {"x-envoy-upstream-service-time": "30"}
    assert time_parts(headers, NO_PARTS, SPANS._replace(network_s=None)) == TimeParts(until_headers_s=0.030)


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({}, ("network", "queue", "prefill", "decode")),
        ({"queue_s": 240.0}, ("network", "prefill", "decode")),  # seconds, or a clock that jumped
        ({"decode_s": 530.0}, ("network", "queue", "prefill")),
        ({"decode_s": 0.560}, ("network", "queue", "prefill")),  # longer than what is left of the E2E
        ({"prefill_s": 0.310}, ("network", "decode")),  # which of the two is wrong?
        ({"queue_s": 0.2585}, ("queue", "prefill", "decode")),  # the host acknowledged with its answer
    ],
)
def test_what_cannot_be_true_is_dropped(changes: dict[str, float], left: tuple[str, ...]) -> None:
    """A part longer than its time, and all that do not fit together; nothing is put in their place."""
    parts = time_parts({}, QUEUED._replace(**changes), SPANS)
    assert parts is not None
    assert tuple(parts.known()) == left


def test_rounding_is_no_lie() -> None:
    """Whole milliseconds may exceed what was measured by one; the network then has no room beside them."""
    headers = {"openai-processing-ms": "51"}
    assert time_parts(headers, NO_PARTS, SPANS) == TimeParts(until_headers_s=0.051)
    assert time_parts({"openai-processing-ms": "52"}, NO_PARTS, SPANS) is None


@pytest.mark.parametrize(
    "value", [-1, -0.001, float("nan"), float("inf"), 1e300, 10**400, "240", None, True, [240], {"ms": 240}]
)
def test_what_is_no_duration_is_no_part(value: Any) -> None:
    """Negative, infinite or of another type: that part is missing, the others stay."""
    reported = body({"queue_time_ms": value, "time_to_first_token_ms": 61})
    assert reported == TimeParts(prefill_s=0.061)


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "1e3", "0x10", "None", "", " 5", "1_0", "5, 6", "9" * 30, "٣"])
def test_a_header_that_is_no_decimal_is_no_part(value: str) -> None:
    """As LiteLLM's `None` where it has measured nothing."""
    assert time_parts({"x-litellm-overhead-duration-ms": value}, NO_PARTS, SPANS) is None


def test_objects_with_the_same_name_of_other_servers_tell_nothing() -> None:
    """A neighbour: other keys, or no object."""
    assert body({"tokens_per_second": 80.0}) == NO_PARTS
    assert time_parts({}, NO_PARTS, SPANS) is None
    assert reported_parts({"metrics": "none", "timings": [1, 2]}) is None


def test_without_a_measured_time_nothing_is_believed() -> None:
    """A claim that cannot be checked is dropped."""
    assert time_parts({}, QUEUED, Spans(0.002, None, None, None)) is None
