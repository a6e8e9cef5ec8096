"""An OpenAI endpoint that answers well, or does as badly as it is told, in a thread of its own on loopback."""

import asyncio
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from itertools import chain, count, cycle
from typing import Any, Self

from tests.processes import HANG_S, free_port
from tests.scripted import Asked, Script, reset, serve
from tests.wire.case import HOLD, RST, Step
from tests.wire.events import DONE, end, sse, text, usage
from tests.wire.heads import body, head

HEAD = head("200 OK", "Content-Type: text/event-stream", "Connection: close")
MODELS = {"data": [{"id": "m", "owned_by": "vllm"}]}
Act = Callable[[int], Iterable[Step]]
"""From the number of tokens that a probe asks for to what it gets."""


def well(tokens: int, pause_s: float = 0.002) -> Iterator[Step]:
    """An answer with the requested number of tokens, one after the other."""
    yield HEAD
    for _ in range(tokens):
        yield from (text("a "), pause_s)
    yield end() + usage(tokens, 20) + DONE


def trickles(tokens: int) -> Iterator[Step]:
    """A stream that sends single bytes and never completes an event."""
    for byte in HEAD + text("a" * 10_000):
        yield from (bytes((byte,)), 0.001)


def forever(first: bytes, rest: bytes, pause_s: float) -> Act:
    """An answer without end."""
    return lambda tokens: chain((first,), cycle((rest, pause_s)))


def endless_headers(tokens: int) -> Iterator[Step]:
    """Header after header."""
    yield b"HTTP/1.1 200 OK\r\n"
    for number in count():
        yield from (b"X-%d: %s\r\n" % (number, b"y" * 1000), 0.001)


def script(*steps: Step) -> Act:
    """The same for every probe."""
    return lambda tokens: steps


# What the endpoint does, and how a probe of it ends.
FAULTS: dict[str, tuple[Act, str]] = {
    "dies before it answers": (script(), "reset"),
    "resets inside the answer": (script(HEAD + text("a"), 0.02, RST), "reset"),
    "ends inside the answer": (script(HEAD + text("a")), "truncated"),
    "hangs before any header": (script(HOLD), "timeout_first_token"),
    "hangs inside the answer": (script(HEAD + text("a"), HOLD), "timeout_stall"),
    "trickles, one byte at a time": (trickles, "timeout_first_token"),
    "sends comments for ever": (forever(HEAD, b": keep-alive\n\n", 0.01), "timeout_first_token"),
    "never ends": (forever(HEAD, text("a"), 0.005), "timeout_total"),
    "sends binary": (script(bytes(range(256)) * 64), "malformed"),
    "sends events that are no JSON": (script(HEAD + b"data: " + bytes(range(128, 256)) + b"\n\n"), "malformed"),
    "sends what is no UTF-8": (script(HEAD + text("a").replace(b'"a"', b'"\xc3\x28\xff"') + DONE), "malformed"),
    "sends a line without end": (forever(HEAD + b"data: ", b"x" * 65536, 0.001), "malformed"),
    "sends headers without end": (endless_headers, "malformed"),
    "sends an error inside the answer": (
        script(HEAD + text("a") + sse({"error": {"message": "out of memory", "code": 500}})),
        "error_in_stream",
    ),
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
        self._writers: set[asyncio.StreamWriter] = set()
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
                reset(writer)  # without it a probe whose request has been read would see a proper end
            await asyncio.sleep(0.01)
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await serve(self._reply, reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # the prober has had enough, or this endpoint goes down
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()  # with TLS the other side has a say in it
            self._writers.discard(writer)

    def _reply(self, asked: Asked) -> Script:
        if asked.method != "GET":
            return self._answer(self.act, asked.json["max_tokens"])
        if asked.path != "/metrics":
            return body("200 OK", MODELS)
        return body("404 Not Found", "") if self.metrics is None else body("200 OK", self.metrics)

    def _answer(self, act: Act, tokens: int) -> Iterator[Step]:
        self.requests[tokens] += 1
        self.misbehaving += act is not well
        try:
            yield from act(tokens)
        finally:
            self.misbehaving -= act is not well
