"""An OpenAI endpoint that answers well, or does as badly as it is told, in a thread of its own on loopback."""

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Self

from tests.processes import HANG_S, free_port

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
MODELS = b'{"data":[{"id":"m","owned_by":"vllm"}]}'
Writer = asyncio.StreamWriter
Act = Callable[[Writer, int], Coroutine[Any, Any, None]]


def event(delta: dict[str, Any], finish: str | None = None, usage: dict[str, int] | None = None) -> bytes:
    """A chunk of a stream."""
    chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": usage}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


async def well(writer: Writer, tokens: int) -> None:
    """An answer with the requested number of tokens, one after the other."""
    writer.write(HEAD)
    for _ in range(tokens):
        writer.write(event({"content": "a "}))
        await asyncio.sleep(0.002)
    usage = {"prompt_tokens": 20, "completion_tokens": tokens, "total_tokens": 20 + tokens}
    writer.write(event({}, "length", usage) + b"data: [DONE]\n\n")
    await writer.drain()


def _reset(writer: Writer) -> None:
    """Close with RST, as a process that is killed with unread data does."""
    with contextlib.suppress(OSError):  # the client was faster
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def dies(writer: Writer, tokens: int) -> None:
    """Before it says anything."""
    writer.close()


async def resets(writer: Writer, tokens: int) -> None:
    """In the middle of the answer, with RST."""
    writer.write(HEAD + event({"content": "a"}))
    await writer.drain()
    await asyncio.sleep(0.02)
    _reset(writer)


async def ends_early(writer: Writer, tokens: int) -> None:
    """In the middle of the answer, with a proper end of the connection."""
    writer.write(HEAD + event({"content": "a"}))


async def hangs_silent(writer: Writer, tokens: int) -> None:
    """Nothing is ever said."""
    await asyncio.sleep(3600)


async def hangs_inside(writer: Writer, tokens: int) -> None:
    """Nothing more after the first token."""
    writer.write(HEAD + event({"content": "a"}))
    await asyncio.sleep(3600)


async def trickles(writer: Writer, tokens: int) -> None:
    """A stream that sends single bytes and never completes an event."""
    for byte in HEAD + event({"content": "a" * 10_000}):
        writer.write(bytes((byte,)))
        await writer.drain()
        await asyncio.sleep(0.001)


async def keeps_alive(writer: Writer, tokens: int) -> None:
    """Comments for ever, which no token is."""
    writer.write(HEAD)
    while True:
        writer.write(b": keep-alive\n\n")
        await writer.drain()
        await asyncio.sleep(0.01)


async def never_ends(writer: Writer, tokens: int) -> None:
    """Token after token."""
    writer.write(HEAD)
    while True:
        writer.write(event({"content": "a"}))
        await writer.drain()
        await asyncio.sleep(0.005)


async def binary(writer: Writer, tokens: int) -> None:
    """Not HTTP."""
    writer.write(bytes(range(256)) * 64)


async def not_a_stream(writer: Writer, tokens: int) -> None:
    """Events whose data is no JSON."""
    writer.write(HEAD + b"data: " + bytes(range(128, 256)) + b"\n\n")


async def bad_text(writer: Writer, tokens: int) -> None:
    """JSON whose text is no UTF-8."""
    writer.write(HEAD + event({"content": "a"}).replace(b'"a"', b'"\xc3\x28\xff"') + b"data: [DONE]\n\n")


async def huge_line(writer: Writer, tokens: int) -> None:
    """Megabytes without an end of line."""
    writer.write(HEAD + b"data: ")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()
        await asyncio.sleep(0.001)  # a drain that need not wait lets nobody else run


async def endless_headers(writer: Writer, tokens: int) -> None:
    """Header after header."""
    writer.write(b"HTTP/1.1 200 OK\r\n")
    number = 0
    while True:
        writer.write(b"X-%d: %s\r\n" % (number, b"y" * 1000))
        await writer.drain()
        await asyncio.sleep(0.001)
        number += 1


async def error_inside(writer: Writer, tokens: int) -> None:
    """An error object in an answer that began well."""
    writer.write(HEAD + event({"content": "a"}) + b'data: {"error": {"message": "out of memory", "code": 500}}\n\n')


# What the endpoint does, and how a probe of it ends.
FAULTS: dict[str, tuple[Act, str]] = {
    "dies before it answers": (dies, "reset"),
    "resets inside the answer": (resets, "reset"),
    "ends inside the answer": (ends_early, "truncated"),
    "hangs before any header": (hangs_silent, "timeout_first_token"),
    "hangs inside the answer": (hangs_inside, "timeout_stall"),
    "trickles, one byte at a time": (trickles, "timeout_first_token"),
    "sends comments for ever": (keeps_alive, "timeout_first_token"),
    "never ends": (never_ends, "timeout_total"),
    "sends binary": (binary, "malformed"),
    "sends events that are no JSON": (not_a_stream, "malformed"),
    "sends what is no UTF-8": (bad_text, "malformed"),
    "sends a line without end": (huge_line, "malformed"),
    "sends headers without end": (endless_headers, "malformed"),
    "sends an error inside the answer": (error_inside, "error_in_stream"),
}


HOSTILE = (r"\"} 1\n# TYPE evil counter\nevil 1", r"\\\\\\", "\u202e\U0001f525" * 20, "x" * 200, r"a\nb", "{}=,;'")


def hostile_page(models: int) -> bytes:
    """A page like vLLM's with two samples of each of many models whose names attack parsers."""
    lines = ["# TYPE vllm:num_requests_running gauge", "# TYPE vllm:generation_tokens_total counter"]
    for number in range(models):
        label = f'model_name="{HOSTILE[number % len(HOSTILE)]}{number}",engine="{number}"'
        lines += [f"vllm:num_requests_running{{{label}}} 1", f"vllm:generation_tokens_total{{{label}}} {number}"]
    return "\n".join(lines).encode() + b"\n"


class Endpoint:
    """Serves while its `with` block lasts.

    Args:
        act: what it does to a probe.
        metrics: the body of its own page, None: it has none.
        longest_pause_s: for which its thread got no processor time, on a busy machine.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self.act: Act = well
        self.metrics: bytes | None = None
        self.requests = Counter[int]()  # requests by the tokens they asked for
        self.misbehaving = 0  # connections
        self.longest_pause_s = 0.0
        self._host, self._tls = host, tls
        self.port = port or free_port()  # no other connection gets it while this is down
        self._first_tls = tls
        if tls is not None:
            tls.sni_callback = self._certificate  # which is asked at every handshake, whether a name is given or not
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._writers: set[Writer] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop.call_soon_threadsafe(self._beat, time.monotonic())
        self.up()
        return self

    def __exit__(self, *_: object) -> None:
        self.down()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(HANG_S)
        self._loop.close()

    def _beat(self, due_s: float) -> None:
        now_s = time.monotonic()
        self.longest_pause_s = max(self.longest_pause_s, now_s - due_s)
        self._loop.call_later(0.05, self._beat, now_s + 0.05)

    def up(self) -> None:
        """Listen, at the same port as before."""
        self._run(self._up())

    def down(self) -> None:
        """Listen no more, and reset who is connected."""
        self._run(self._down())

    def tls(self, context: ssl.SSLContext) -> None:
        """Another certificate for who connects from now on."""
        self._tls = context

    def _certificate(self, connection: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
        if self._tls is not None:
            connection.context = self._tls

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(HANG_S)

    async def _up(self) -> None:
        self._server = await asyncio.start_server(
            self._serve, self._host, self.port, ssl=self._first_tls, reuse_address=True
        )

    async def _down(self) -> None:
        if self._server is None:
            return
        for listener in self._server.sockets:
            self._loop.remove_reader(listener.fileno())  # a closed server forgets, open, what it has just accepted
        while len(asyncio.all_tasks()) > 1:  # a connection that was just accepted has a task before it has a writer
            for writer in self._writers:
                _reset(writer)  # without it a probe whose request has been read would see a proper end
            await asyncio.sleep(0.01)
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: Writer) -> None:
        self._writers.add(writer)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.startswith(b"GET"):
                self._page(head.split(b" ")[1], writer)
            else:
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                body = json.loads(await reader.readexactly(length))
                self.requests[body["max_tokens"]] += 1
                await self._answer(reader, writer, body["max_tokens"])
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the prober has had enough, or this endpoint goes down
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()  # with TLS the other side has a say in it
            self._writers.discard(writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: Writer, tokens: int) -> None:
        """Until it has answered, or the prober has gone."""
        act = self.act
        self.misbehaving += act is not well
        tasks = [asyncio.ensure_future(act(writer, tokens)), asyncio.ensure_future(reader.read())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.misbehaving -= act is not well

    def _page(self, path: bytes, writer: Writer) -> None:
        body, status = MODELS, b"200 OK"
        if path == b"/metrics":
            body, status = (self.metrics, status) if self.metrics is not None else (b"", b"404 Not Found")
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(body), body))
