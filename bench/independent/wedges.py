"""An HTTP server that wedges as real engines did, or only looks like it, from a moment until another one.

    async with WedgeServer("dead_rank") as server:
        server.url                # OpenAI's chat completions, /health, /metrics as vLLM writes them, on loopback
        server.begin()
        await server.end()        # a wedge ends by a restart: connections are cut, counters begin at 0
        server.requests, server.wedged_s

In a wedge `/health` and `/metrics` say 200 and connections are accepted, and no token comes: of any request; of those of one
data-parallel rank of four; or of any while the page shows a queue that grows. Users inside the server keep the counters moving as long
as the engine does. A request goes to the ranks in turn, or to that of the header `X-data-parallel-rank`, as in vLLM.
"""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

MODEL = "wedged"
RANK_HEADER = "x-data-parallel-rank"  # vLLM writes X-data-parallel-rank; names of headers have no case
KEEP_ALIVE_S = 3.0
LONG_PREFILL_S, LONG_WORDS = 40.0, 2000
PREFILL_S, TOKEN_S = 0.05, 0.02
FOREVER = 1e9


@dataclass(frozen=True, slots=True)
class Scene:
    """How a server behaves.

    early: sent as soon as a request is accepted; the role chunk comes with it or with the first token
    kind: `wedge` and `dead_rank`: nothing of all ranks, or of the last but one, makes progress; `none`: no change
    is_counted: requests of a wedge are in the page's queue; else the page stays as it was
    users_per_s, users_at_once: load from inside: arrivals, and users of whom each sends one request after another
    """

    kind: Literal["wedge", "dead_rank", "long_prompts", "block", "overload", "sleep", "slow_rank", "refuse"]
    early: Literal["nothing", "headers", "role"] = "headers"
    has_keep_alive: bool = False
    is_counted: bool = True
    ranks: int = 1
    slots: int = 16
    users_per_s: float = 1.0
    users_at_once: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a prober must say of a scene after its begin.

    is_failing: it must say that the target fails, within `within_s`; None: it may
    health: status of /health/TARGET that it must reach within `within_s`; None: either
    pages: alerts that wake somebody, from begin to end and two minutes after
    lasts_s: from begin to end
    """

    is_failing: bool | None
    health: int | None
    pages: int
    why: str
    within_s: float = 60.0
    lasts_s: float = 600.0


SCENES: dict[str, Scene] = {
    "silent": Scene("wedge", early="nothing", is_counted=False),
    "headers_only": Scene("wedge", is_counted=False),
    "role_only": Scene("wedge", early="role", is_counted=False),
    "keep_alive": Scene("wedge", has_keep_alive=True, is_counted=False),
    "role_and_keep_alive": Scene("wedge", early="role", has_keep_alive=True, is_counted=False),
    "growing_queue": Scene("wedge", users_per_s=2.0),
    "growing_queue_keep_alive": Scene("wedge", has_keep_alive=True, users_per_s=2.0),
    "dead_rank": Scene("dead_rank", ranks=4, users_per_s=2.0),
    "dead_rank_keep_alive": Scene("dead_rank", early="role", has_keep_alive=True, ranks=4, users_per_s=2.0),
    "dead_rank_uncounted": Scene("dead_rank", early="nothing", is_counted=False, ranks=4),
    "long_prompts": Scene("long_prompts"),
    "prefill_block": Scene("block"),
    "overloaded": Scene("overload", slots=2, users_per_s=0.0, users_at_once=14),
    "asleep": Scene("sleep", users_per_s=0.0),
    "slow_rank": Scene("slow_rank", ranks=4),
    "restarting": Scene("refuse"),
}
_WEDGED = "a person on call is woken once: users get no token, whatever /health says"
_RANK = "a quarter of the users get no token"
VERDICTS: dict[str, Verdict] = {
    **{name: Verdict(True, 503, 1, _WEDGED) for name, scene in SCENES.items() if scene.kind == "wedge"},
    **{name: Verdict(True, 503, 1, _RANK) for name, scene in SCENES.items() if scene.kind == "dead_rank"},
    "long_prompts": Verdict(False, 200, 0, "short prompts are answered at once; long ones come after 40 s"),
    "prefill_block": Verdict(None, None, 0, "40 s without a token, once; all answers come", lasts_s=LONG_PREFILL_S),
    "overloaded": Verdict(False, 200, 0, "six seconds of queue, and all answers come; an SLO of latency is another matter"),
    "asleep": Verdict(None, None, 0, "somebody put it to sleep, and its page says so"),
    "slow_rank": Verdict(False, 200, 0, "all answers come; one rank in four takes four times as long"),
    "restarting": Verdict(None, None, 0, "45 s of refused connections, then a new start time", lasts_s=45.0),
}  # fmt: skip


@dataclass
class Served:
    """The truth of a request over HTTP, in seconds since the server's start. None: it did not happen.

    is_chosen: the client chose the rank; end: `whole`, `left` by the client, `cut` by the server
    """

    at_s: float
    rank: int
    is_chosen: bool
    is_wedged: bool
    first_token_s: float | None = None
    tokens: int = 0
    end: Literal["whole", "left", "cut"] | None = None


@dataclass
class _Rank:
    slots: asyncio.Semaphore
    moving: asyncio.Event
    pace: float = 1.0
    running: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    generated: int = 0
    finished: int = 0
    first_tokens: int = 0
    first_token_seconds: float = 0.0


_Request = tuple[str, str, dict[str, str], dict[str, Any]]  # method, path, headers, JSON


class WedgeServer:
    """A scene's server, in the running loop and its time.

    requests: all of chat completions; wedged_s: begin and end of each wedge or look-alike, the end infinite while it lasts
    """

    def __init__(self, scene: str) -> None:
        self.scene = SCENES[scene]
        self.requests: list[Served] = []
        self.wedged_s: list[tuple[float, float]] = []
        self._loop = asyncio.get_running_loop()
        self._zero_s, self._zero_unix_s = self._loop.time(), time.time()
        self._started_unix_s = self._zero_unix_s
        self._ranks = self._new_ranks()
        self._turn = itertools.count()
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._was_cut: set[asyncio.StreamWriter] = set()
        self._users: list[asyncio.Task[None]] = []
        self._listener: asyncio.Server | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """Base of the API."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def now_s(self) -> float:
        """Seconds since the start."""
        return self._loop.time() - self._zero_s

    @property
    def is_on(self) -> bool:
        """Whether the scene has begun and not ended."""
        return bool(self.wedged_s) and self.wedged_s[-1][1] > self.now_s

    async def __aenter__(self) -> "WedgeServer":
        await self._listen()
        self._users = [asyncio.create_task(self._arrivals())]
        self._users += [asyncio.create_task(self._user()) for _ in range(self.scene.users_at_once)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in (*self._users, *self._open):
            task.cancel()
        await asyncio.gather(*self._users, *self._open, return_exceptions=True)
        assert self._listener is not None
        self._listener.close()

    def begin(self) -> None:
        """The scene begins; `prefill_block` ends by itself."""
        self.wedged_s.append((self.now_s, FOREVER))
        kind = self.scene.kind
        for number, rank in enumerate(self._ranks):
            if self._is_stuck(number) or kind in ("sleep", "block"):
                rank.moving.clear()
        if kind == "block":
            self.wedged_s[-1] = (self.now_s, self.now_s + LONG_PREFILL_S)
            self._loop.call_later(LONG_PREFILL_S, self._move)
        elif kind == "slow_rank":
            self._ranks[-2].pace = 4.0
        elif kind == "refuse":
            assert self._listener is not None
            self._listener.close()
            self._cut()

    async def end(self) -> None:
        """The scene ends: a wedged or refusing engine has restarted, one that sleeps wakes up."""
        begin_s, end_s = self.wedged_s[-1]
        self.wedged_s[-1] = (begin_s, min(end_s, self.now_s))
        if self.scene.kind in ("wedge", "dead_rank", "refuse"):
            self._cut()
            self._ranks, self._started_unix_s = self._new_ranks(), self._zero_unix_s + self.now_s
        if self.scene.kind == "refuse":
            await self._listen()
        self._move()

    def _new_ranks(self) -> list[_Rank]:
        ranks = [_Rank(asyncio.Semaphore(self.scene.slots), asyncio.Event()) for _ in range(self.scene.ranks)]
        for rank in ranks:
            rank.moving.set()
        return ranks

    def _move(self) -> None:
        for rank in self._ranks:
            rank.pace = 1.0
            rank.moving.set()

    def _cut(self) -> None:
        self._was_cut.update(self._open.values())
        for writer in self._open.values():
            writer.transport.abort()

    def _is_stuck(self, rank: int) -> bool:
        is_all = self.scene.kind == "wedge"
        return self.is_on and (is_all or (self.scene.kind == "dead_rank" and rank == self.scene.ranks - 2))

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        self._port = self._listener.sockets[0].getsockname()[1]

    # The engine

    async def _arrivals(self) -> None:
        tasks: set[asyncio.Task[None]] = set()
        try:
            while self.scene.users_per_s:
                await asyncio.sleep(1 / self.scene.users_per_s)
                task = asyncio.create_task(self._tokens_of_user())
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        finally:
            for task in tasks:
                task.cancel()

    async def _user(self) -> None:
        while True:
            await self._tokens_of_user()

    async def _tokens_of_user(self) -> None:
        async for _ in self._tokens(next(self._turn) % self.scene.ranks, 300, 40):
            pass

    async def _tokens(self, number: int, prompt_tokens: int, output_tokens: int) -> AsyncIterator[None]:
        """Yield as tokens come. A request of a wedged engine stays in its queue when the client has left."""
        if self._is_stuck(number) and not self.scene.is_counted:
            await asyncio.Event().wait()
        rank, at_s, has_slot = self._ranks[number], self.now_s, False
        rank.waiting += 1
        try:
            await rank.slots.acquire()
            has_slot = True
            rank.waiting, rank.running = rank.waiting - 1, rank.running + 1
            is_long = prompt_tokens > LONG_WORDS and self.scene.kind == "long_prompts" and self.is_on
            await asyncio.sleep(LONG_PREFILL_S if is_long else PREFILL_S * rank.pace)
            await rank.moving.wait()
            rank.prompt_tokens += prompt_tokens
            rank.first_tokens += 1
            rank.first_token_seconds += self.now_s - at_s
            for token in range(output_tokens):
                if token:
                    await asyncio.sleep(TOKEN_S * rank.pace)
                    await rank.moving.wait()
                rank.generated += 1
                rank.finished += token == output_tokens - 1
                yield
        finally:
            if not self._is_stuck(number) or rank is not self._ranks[number]:
                rank.running -= has_slot
                rank.waiting -= not has_slot
                if has_slot:
                    rank.slots.release()

    # HTTP

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while not writer.is_closing():
                await self._answer(await _read(reader), reader, writer)
        del self._open[task]
        writer.close()

    async def _answer(self, request: _Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, path, headers, asked = request
        if method == "POST" and path == "/v1/chat/completions":
            await self._chat(headers, asked, reader, writer)
            return
        answers: dict[str, Callable[[], bytes]] = {
            "/health": bytes,
            "/metrics": lambda: self.page().encode(),
            "/v1/models": lambda: _json(object="list", data=[{"id": MODEL, "object": "model", "owned_by": "vllm"}]),
            "/version": lambda: _json(version="0.32.0"),
            "/is_sleeping": lambda: _json(is_sleeping=self.scene.kind == "sleep" and self.is_on),
        }
        is_known = path in answers
        body = answers[path]() if is_known else _json(detail="Not Found")
        kind = b"text/plain; version=0.0.4; charset=utf-8" if path == "/metrics" else b"application/json"
        writer.write(_head(b"200 OK" if is_known else b"404 Not Found", kind, len(body)) + body)
        await writer.drain()

    async def _chat(
        self, headers: dict[str, str], asked: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        chosen = headers.get(RANK_HEADER, "").strip()
        number = int(chosen) if chosen.isdecimal() else next(self._turn) % self.scene.ranks
        if number >= self.scene.ranks:
            text = f"data_parallel_rank {number} is out of range [0, {self.scene.ranks})."
            body = _json(error={"message": text, "type": "BadRequestError", "param": None, "code": 400})
            writer.write(_head(b"400 Bad Request", b"application/json", len(body)) + body)
            return
        served = Served(self.now_s, number, chosen.isdecimal(), self._is_stuck(number))
        self.requests.append(served)
        answer = asyncio.create_task(self._stream(asked, served, writer))
        comments = asyncio.create_task(self._keep_alive(writer))
        gone = asyncio.create_task(reader.read(1))  # b"" when the client has left: it sends nothing meanwhile
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done() or answer.exception():
                served.end = "cut" if writer in self._was_cut else "left"
                writer.transport.abort()
        finally:
            for task in (answer, comments, gone):
                task.cancel()
            await asyncio.gather(answer, comments, gone, return_exceptions=True)

    async def _keep_alive(self, writer: asyncio.StreamWriter) -> None:
        while self.scene.has_keep_alive:
            await asyncio.sleep(KEEP_ALIVE_S)
            writer.write(_chunk(b": keep-alive\n\n"))

    async def _stream(self, body: dict[str, Any], served: Served, writer: asyncio.StreamWriter) -> None:
        words = sum(len(str(message["content"]).split()) for message in body["messages"])
        output_tokens = int(body.get("max_completion_tokens") or body.get("max_tokens") or 16)
        head = _head(b"200 OK", b"text/event-stream; charset=utf-8", None)
        role = _event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
        early = {"nothing": b"", "headers": head, "role": head + role}[self.scene.early]
        writer.write(early)
        async for _ in self._tokens(served.rank, words, output_tokens):
            if not served.tokens:
                served.first_token_s = self.now_s
                writer.write((head + role)[len(early) :])
            served.tokens += 1
            reason = "length" if served.tokens == output_tokens else None
            writer.write(_event(choices=[{"index": 0, "delta": {"content": " of"}, "finish_reason": reason}]))
            await writer.drain()
        usage = {"prompt_tokens": words, "completion_tokens": served.tokens, "total_tokens": words + served.tokens}
        writer.write(_event(choices=[], usage=usage) + _chunk(b"data: [DONE]\n\n") + _chunk(b""))
        await writer.drain()
        served.end = "whole"

    def page(self) -> str:
        """The metrics page, in the form of vLLM with a series for each rank."""
        lines = ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {self._started_unix_s}"]
        asleep = self.scene.kind == "sleep" and self.is_on
        rows: tuple[tuple[str, str, str, Callable[[_Rank], float]], ...] = (
            ("num_requests_running", "gauge", "", lambda rank: rank.running),
            ("num_requests_waiting", "gauge", "", lambda rank: rank.waiting),
            ("kv_cache_usage_perc", "gauge", "", lambda rank: min(1.0, rank.running / self.scene.slots)),
            ("prompt_tokens_total", "counter", "", lambda rank: rank.prompt_tokens),
            ("generation_tokens_total", "counter", "", lambda rank: rank.generated),
            ("request_success_total", "counter", ',finished_reason="length"', lambda rank: rank.finished),
            ("engine_sleep_state", "gauge", ',sleep_state="awake"', lambda _: not asleep),
            ("engine_sleep_state", "gauge", ',sleep_state="weights_offloaded"', lambda _: asleep),
            ("engine_sleep_state", "gauge", ',sleep_state="discard_all"', lambda _: 0),
            ("time_to_first_token_seconds_bucket", "", ',le="+Inf"', lambda rank: rank.first_tokens),
            ("time_to_first_token_seconds_count", "", "", lambda rank: rank.first_tokens),
            ("time_to_first_token_seconds_sum", "", "", lambda rank: rank.first_token_seconds),
        )
        for name, kind, labels, value in rows:
            if name.endswith("_bucket"):
                lines.append("# TYPE vllm:time_to_first_token_seconds histogram")
            elif kind and not any(line.startswith(f"# TYPE vllm:{name} ") for line in lines):
                lines.append(f"# TYPE vllm:{name} {kind}")
            for number, rank in enumerate(self._ranks):
                lines.append(f'vllm:{name}{{engine="{number}",model_name="{MODEL}"{labels}}} {float(value(rank))}')
        return "\n".join(lines) + "\n"


async def _read(reader: asyncio.StreamReader) -> _Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, target, _ = head[0].split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return method, target.partition("?")[0], headers, json.loads(body) if body else {}


def _json(**values: object) -> bytes:
    return json.dumps(values).encode()


def _head(status: bytes, kind: bytes, length: int | None) -> bytes:
    framing = b"Transfer-Encoding: chunked" if length is None else b"Content-Length: %d" % length
    return b"HTTP/1.1 %s\r\nServer: uvicorn\r\nContent-Type: %s\r\n%s\r\n\r\n" % (status, kind, framing)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(**values: object) -> bytes:
    chunk = _json(id="chatcmpl-1", object="chat.completion.chunk", created=0, model=MODEL, **values)
    return _chunk(b"data: " + chunk + b"\n\n")
