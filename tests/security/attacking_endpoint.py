"""A hostile inference server, which shares nothing with the prober or its mock.

Quiet, it answers as a small OpenAI-compatible server does.
"""

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.scripted import Asked
from tests.wire.case import Step
from tests.wire.heads import EVENTS, LAST_CHUNK, body, chunk

CHUNKS, CHUNK_S = 16, 0.01
KB, MB = 1_000, 1_000_000
PAGE = b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1.0\n"


@dataclass(frozen=True)
class Reply:
    """What is written instead of the ordinary answer; an empty part stays as it is."""

    headers: bytes = b""
    status: bytes = b""
    body: Callable[[], bytes] = lambda: b"{}"  # with `status`
    events: Callable[[], list[bytes]] | None = None  # of the stream
    usage_tokens: int = 0
    version: Callable[[], bytes] | None = None
    models: Callable[[], bytes] | None = None
    page: Callable[[], bytes] | None = None
    config: str = ""  # more keys of the hostile target's workload
    outcome: str = "ok"  # the only one: its own faults are faults, and what it adds to a good answer changes nothing


def _chunk(text: str, **more: Any) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": {"content": text}}], **more}).encode()


def _series() -> bytes:
    return PAGE + b"".join(b'vllm:num_requests_waiting{engine="%d"} 1.0\n' % number for number in range(250_000))


def _overflow() -> bytes:
    name = b"vllm:time_to_first_token_seconds"
    rows = b"".join(
        b'%s_bucket{engine="%d",le="+Inf"} 1.0\n%s_count{engine="%d"} 1.0\n%s_sum{engine="%d"} 1e308\n'
        % (name, number, name, number, name, number)
        for number in range(2)
    )
    return b"# TYPE " + name + b" histogram\n" + rows


ATTACKS = {
    "endpoint: header that is no number": Reply(b"x-ratelimit-remaining-requests: \xb2\r\n"),
    "endpoint: header beyond all numbers": Reply(b"x-ratelimit-remaining-tokens: " + b"9" * 5000 + b"\r\n"),
    "endpoint: 60 MB of JSON in small events": Reply(
        outcome="malformed", events=lambda: [b'{"choices":[],"x":[' + b"1," * 100_000 + b"1]}"] * 300
    ),
    "endpoint: 60 arrays of 1 MiB": Reply(
        outcome="malformed", events=lambda: [b'{"choices":[],"x":[' + b"1," * (512 << 10) + b"1]}"] * 60
    ),
    "endpoint: flood of tiny chunks": Reply(outcome="malformed", events=lambda: [_chunk("a")] * 100_000),
    "endpoint: flood of empty objects": Reply(outcome="malformed", events=lambda: [b"{}"] * 200_000),
    "endpoint: deep JSON": Reply(
        outcome="malformed", events=lambda: [b'{"choices":[],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"] * 60
    ),
    "endpoint: golden regex that backtracks": Reply(
        outcome="wrong_answer",
        events=lambda: [_chunk("a" * 480) for _ in range(100)],
        config='golden: [{prompt: "a", expect: {regex: "(a+)+$"}}, {prompt: "b", expect: {regex: "(a|aa)+b"}}]',
    ),
    "endpoint: golden schema with uniqueItems": Reply(
        outcome="wrong_answer",
        events=lambda: [_chunk("["), *(_chunk("[1]," * 120) for _ in range(100)), _chunk("1]")],
        config='golden: [{prompt: "a", expect: {json_schema: {type: array, uniqueItems: true}}}]',
    ),
    "endpoint: version that unfolds": Reply(version=lambda: b'{"version":' + b"[[]," * MB + b"1" + b"]" * MB + b"}"),
    "endpoint: 100,000 models": Reply(
        outcome="malformed",
        models=lambda: b'{"data":[' + b",".join(b'{"id":"m%d"}' % number for number in range(100_000)) + b"]}",
    ),
    "endpoint: model id of 200 kB": Reply(
        outcome="malformed", models=lambda: b'{"data":[{"id":"' + b"m" * (200 * KB) + b'"}]}'
    ),
    "endpoint: page of 250,000 series": Reply(page=_series),
    "endpoint: page whose sum overflows": Reply(page=_overflow),
    "endpoint: Retry-After that is no number": Reply(
        b"Retry-After: \xb2\r\n", b"429 Too Many Requests", outcome="http_429"
    ),
    "endpoint: Retry-After of ages": Reply(
        b"Retry-After: 99999999999999\r\n", b"429 Too Many Requests", outcome="http_429"
    ),
    "endpoint: errors of 64 kB": Reply(
        outcome="http_5xx",
        status=b"500 Internal Server Error",
        body=lambda: b"<p>request %s failed" % uuid.uuid4().hex.encode() + b"<p>at line" * 6_400,
    ),
    "endpoint: a billion tokens claimed": Reply(usage_tokens=10**9),
    "endpoint: silence": Reply(outcome="timeout_first_token", status=b"silence"),
}


class Server:
    """Answers, hostile while `attacking`. seen: how many requests of each path were answered"""

    def __init__(self, reply: Reply) -> None:
        self._reply, self.attacking, self.seen = reply, False, Counter[str]()

    def answer(self, asked: Asked) -> Iterator[Step]:
        """The script of an answer."""
        reply, path = self._reply if self.attacking else Reply(), asked.path.partition("?")[0]
        self.seen[f"{path}{' attacked' if self.attacking else ''}"] += 1
        makers = {
            "/version": (reply.version, b'{"version":"0.9.0"}'),
            "/v1/models": (reply.models, b'{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm"}]}'),
            "/metrics": (reply.page, PAGE),
        }
        if path.endswith("/completions"):
            yield from self._stream(reply)
        elif path in makers:
            make, ordinary = makers[path]
            kind = "text/plain" if path == "/metrics" else "application/json"
            yield from body("200 OK", make() if make is not None else ordinary, f"Content-Type: {kind}")
        else:
            yield from body("404 Not Found", "")

    @staticmethod
    def _stream(reply: Reply) -> Iterator[Step]:
        if reply.status == b"silence":
            yield 60.0
            return
        if reply.status:
            answer = reply.body()
            lines = b"HTTP/1.1 " + reply.status + b"\r\nContent-Type: application/json\r\n" + reply.headers
            yield lines + b"Content-Length: %d\r\n\r\n" % len(answer) + answer
            return
        yield b"HTTP/1.1 200 OK\r\n%b\r\nTransfer-Encoding: chunked\r\n%b\r\n" % (EVENTS.encode(), reply.headers)
        for event in reply.events() if reply.events else ():
            yield _event(event)
        for number in range(0 if reply.events else CHUNKS):
            yield from (_event(_chunk(f" w{number}")), CHUNK_S)
        usage = {"prompt_tokens": reply.usage_tokens or 128, "completion_tokens": reply.usage_tokens or CHUNKS}
        yield _event(json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}).encode())
        yield _event(json.dumps({"choices": [], "usage": usage}).encode())
        yield _event(b"[DONE]") + LAST_CHUNK


def _event(data: bytes) -> bytes:
    return chunk(b"data: " + data + b"\n\n")
