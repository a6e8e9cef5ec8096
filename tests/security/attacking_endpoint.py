"""A hostile inference server: HTTP written by hand, so that it shares nothing with the prober or its mock.

Quiet, it answers as a small OpenAI-compatible server does.
"""

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
        events=lambda: [b'{"choices":[],"x":[' + b"1," * 100_000 + b"1]}"] * 300
    ),
    "endpoint: 60 arrays of 1 MiB": Reply(events=lambda: [b'{"choices":[],"x":[' + b"1," * (512 << 10) + b"1]}"] * 60),
    "endpoint: flood of tiny chunks": Reply(events=lambda: [_chunk("a")] * 100_000),
    "endpoint: flood of empty objects": Reply(events=lambda: [b"{}"] * 200_000),
    "endpoint: deep JSON": Reply(events=lambda: [b'{"choices":[],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"] * 60),
    "endpoint: golden regex that backtracks": Reply(
        events=lambda: [_chunk("a" * 480) for _ in range(100)],
        config='golden: [{prompt: "a", expect: {regex: "(a+)+$"}}, {prompt: "b", expect: {regex: "(a|aa)+b"}}]',
    ),
    "endpoint: golden schema with uniqueItems": Reply(
        events=lambda: [_chunk("["), *(_chunk("[1]," * 120) for _ in range(100)), _chunk("1]")],
        config='golden: [{prompt: "a", expect: {json_schema: {type: array, uniqueItems: true}}}]',
    ),
    "endpoint: version that unfolds": Reply(version=lambda: b'{"version":' + b"[[]," * MB + b"1" + b"]" * MB + b"}"),
    "endpoint: 100,000 models": Reply(
        models=lambda: b'{"data":[' + b",".join(b'{"id":"m%d"}' % number for number in range(100_000)) + b"]}"
    ),
    "endpoint: model id of 200 kB": Reply(models=lambda: b'{"data":[{"id":"' + b"m" * (200 * KB) + b'"}]}'),
    "endpoint: page of 250,000 series": Reply(page=_series),
    "endpoint: page whose sum overflows": Reply(page=_overflow),
    "endpoint: Retry-After that is no number": Reply(b"Retry-After: \xb2\r\n", b"429 Too Many Requests"),
    "endpoint: Retry-After of ages": Reply(b"Retry-After: 99999999999999\r\n", b"429 Too Many Requests"),
    "endpoint: errors of 64 kB": Reply(
        status=b"500 Internal Server Error",
        body=lambda: b"<p>request %s failed" % uuid.uuid4().hex.encode() + b"<p>at line" * 6_400,
    ),
    "endpoint: a billion tokens claimed": Reply(usage_tokens=10**9),
    "endpoint: silence": Reply(status=b"silence"),
}


class Server:
    """Answers, hostile while `attacking`. seen: how many requests of each path were answered"""

    def __init__(self, reply: Reply) -> None:
        self._reply, self.attacking, self.seen = reply, False, Counter[str]()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request after the other."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                path = head.split(b" ", 2)[1].split(b"?")[0].decode("latin-1")
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        await reader.readexactly(int(line.split(b":")[1]))
                self.seen[f"{path}{' attacked' if self.attacking else ''}"] += 1
                await self._answer(path, writer, self._reply if self.attacking else Reply())
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, path: str, writer: asyncio.StreamWriter, reply: Reply) -> None:
        if path.endswith("/completions"):
            await self._stream(writer, reply)
            return
        makers: dict[str, tuple[Callable[[], bytes] | None, bytes]] = {
            "/version": (reply.version, b'{"version":"0.9.0"}'),
            "/v1/models": (reply.models, b'{"object":"list","data":[{"id":"m","object":"model","owned_by":"vllm"}]}'),
            "/metrics": (reply.page, PAGE),
        }
        if path not in makers:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        make, ordinary = makers[path]
        body = make() if make is not None else ordinary
        kind = b"text/plain" if path == "/metrics" else b"application/json"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (kind, len(body)) + body)
        await writer.drain()

    async def _stream(self, writer: asyncio.StreamWriter, reply: Reply) -> None:
        if reply.status == b"silence":
            await asyncio.sleep(60.0)
            return
        if reply.status:
            head = b"HTTP/1.1 " + reply.status + b"\r\nContent-Type: application/json\r\n" + reply.headers
            body = reply.body()
            writer.write(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await writer.drain()
            return
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
        writer.write(head + reply.headers + b"\r\n")
        if reply.events is None:
            for number in range(CHUNKS):
                _write(writer, _chunk(f" w{number}"))
                await writer.drain()
                await asyncio.sleep(CHUNK_S)
        else:
            for event in reply.events():
                _write(writer, event)
                await writer.drain()
        tokens = reply.usage_tokens or CHUNKS
        usage = {"prompt_tokens": reply.usage_tokens or 128, "completion_tokens": tokens}
        _write(writer, json.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}).encode())
        _write(writer, json.dumps({"choices": [], "usage": usage}).encode())
        _write(writer, b"[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def _write(writer: asyncio.StreamWriter, event: bytes) -> None:
    data = b"data: " + event + b"\n\n"
    writer.write(b"%x\r\n" % len(data) + data + b"\r\n")
