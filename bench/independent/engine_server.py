"""A simulated engine behind HTTP: streamed chat completions and the metrics page of vLLM, in the time of the running loop."""

import asyncio
import json
import math
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from aiohttp import web

from bench.independent.engine import COMPLETE, IN_FLIGHT, Engine
from prober.measure.engine_signals import EngineHistogram

MODEL = "simulated"
POLL_S = 0.004  # less than a step takes, so that all tokens are known before they are due
STARTED_UNIX_S = 1_700_000_000.0
HISTOGRAMS = {
    "time_to_first_token_seconds": "ttft_seconds",
    "request_queue_time_seconds": "queue_seconds",
    "e2e_request_latency_seconds": "e2e_seconds",
    "request_prompt_tokens": "prompt_tokens",
    "request_generation_tokens": "output_tokens",
}
TOKEN_LATENCIES = ("inter_token_latency_seconds", "request_time_per_output_token_seconds")
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Other = tuple[float, int, int] | tuple[float, int, int, list[int]]


@dataclass
class _Answer:
    """A request over HTTP. due: times of tokens in the loop's time, None at the end, infinity where the engine has gone"""

    number: int
    due: "asyncio.Queue[float | None]" = field(default_factory=asyncio.Queue)
    known: int = 0


class EngineServer:
    """An engine with others' requests, whose time 0 is `lead_s` before now.

    others: arrival in the engine's time, prompt and output tokens, and ids of prefix blocks, ascending and without end
    prompt_tokens: of each request over HTTP; None: as many as it has words
    """

    def __init__(
        self, engine: Engine, others: Iterator[Other], lead_s: float, prompt_tokens: int | None = None
    ) -> None:
        self.engine, self._others, self._prompt_tokens = engine, others, prompt_tokens
        self._loop = asyncio.get_running_loop()
        self._zero_s = self._loop.time() - lead_s
        self._next_other = next(others)
        self._up_s, self._ranks, self._admitted_s = 0.0, 0, 0.0
        self._gone: defaultdict[str, float] = defaultdict(float)  # counts of ranks that have left
        self.most_per_s = math.inf
        self._answers: list[_Answer] = []
        self._pump: asyncio.Task[None] | None = None
        self.served = 0  # requests over HTTP
        self.tokens_of_others = 0  # prompt and output tokens of those that arrived
        self.arrived_others: list[tuple[float, int]] = []  # arrival, number in the engine

    @property
    def now_s(self) -> float:
        """The engine's time."""
        return self._loop.time() - self._zero_s

    def app(self) -> web.Application:
        """Routes as those of vLLM."""
        app = web.Application(client_max_size=1 << 24, middlewares=[self._restarting])
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        app.router.add_get("/metrics", self._metrics)
        app.cleanup_ctx.append(self._pumping)
        return app

    def catch_up(self) -> None:
        """Advance the engine and the requests of others to now."""
        now_s = self.now_s
        while self._next_other[0] <= now_s:
            if self._next_other[0] >= self._up_s:
                self.arrived_others.append((self._next_other[0], self.engine.submit(*self._next_other)))
                self.tokens_of_others += self._next_other[1] + self._next_other[2]
            self._next_other = next(self._others)
        self.engine.advance(now_s)

    def replace_others(self, others: Iterator[Other]) -> None:
        """From now on these requests of others arrive, whose time 0 is now."""
        self.catch_up()
        begin_s = self.now_s
        self._others = ((begin_s + at_s, *lengths) for at_s, *lengths in others)
        self._next_other = next(self._others)

    def restart(self, engine: Engine, down_s: float) -> None:
        """Requests in flight are cut; after a while without answers another engine is there, with counters from 0."""
        self.catch_up()
        for answer in self._answers:
            answer.due.put_nowait(math.inf)
        self._answers = []
        self.engine, self._ranks = engine, 0
        self._gone.clear()
        self._up_s = self.now_s + down_s

    async def _pumping(self, _: web.Application) -> AsyncIterator[None]:
        pump = asyncio.create_task(self._poll())
        yield
        pump.cancel()

    async def _poll(self) -> None:
        """Tell the answers under way when their tokens are due."""
        while True:
            await asyncio.sleep(POLL_S if self._answers else 5 * POLL_S)
            if not self._answers:
                continue
            self.catch_up()
            first = self._answers[0].number
            results = self.engine.results(first)
            still_open = []
            for answer in self._answers:
                at = answer.number - first
                if results.tokens[at] > answer.known:
                    for due_s in self.engine.known_token_times_s(answer.number, int(results.tokens[at]))[
                        answer.known :
                    ]:
                        answer.due.put_nowait(float(due_s) + self._zero_s)
                    answer.known = int(results.tokens[at])
                if results.status[at] == IN_FLIGHT:
                    still_open.append(answer)
                else:
                    answer.due.put_nowait(None)
            self._answers = still_open

    @web.middleware
    async def _restarting(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        return web.Response(status=503) if self.now_s < self._up_s else await handler(request)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        if self.now_s < self._admitted_s:  # a leaky bucket of one second
            return web.json_response({"error": {"message": "rate limit"}}, status=429)
        self._admitted_s = max(self._admitted_s, self.now_s - 1.0) + 1 / self.most_per_s
        body = await request.json()
        prompt_tokens = self._prompt_tokens or sum(len(message["content"].split()) for message in body["messages"])
        output_tokens = int(body.get("max_completion_tokens") or body["max_tokens"])
        self.catch_up()
        self.served += 1
        engine = self.engine
        answer = _Answer(engine.submit(self.now_s, prompt_tokens, output_tokens, self._blocks(body), keep_tokens=True))
        self._answers.append(answer)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        head = b'data: {"id":"a","object":"chat.completion.chunk","created":0,"model":"%s","choices":[' % MODEL.encode()
        sent = 0
        try:
            while (due_s := await answer.due.get()) is not None:
                if math.isinf(due_s):
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                if (wait_s := due_s - self._loop.time()) > 0:
                    await asyncio.sleep(wait_s)
                sent += 1
                finish = b'"length"' if sent == output_tokens else b"null"
                role = b'"role":"assistant",' if sent == 1 else b""
                choice = b'{"index":0,"delta":{%s"content":" of"},"finish_reason":%s}]}\n\n' % (role, finish)
                await response.write(head + choice)
            usage = {"prompt_tokens": prompt_tokens, "completion_tokens": sent, "total_tokens": prompt_tokens + sent}
            await response.write(head + b'],"usage":' + json.dumps(usage).encode() + b"}\n\ndata: [DONE]\n\n")
        finally:
            if answer in self._answers and engine.results(answer.number, answer.number + 1).status[0] != COMPLETE:
                engine.cancel(answer.number)
        return response

    def _blocks(self, body: dict[str, Any]) -> list[int]:
        """Ids of the blocks of the prompt: equal where all words until the end of a block are equal."""
        if not (size := self.engine.structure.prefix_block):
            return []
        words = " ".join(message["content"] for message in body["messages"]).split()
        ids, digest = [], blake2b(str(body.get("cache_salt")).encode(), digest_size=7)
        for start in range(0, len(words) - size + 1, size):
            digest.update(" ".join(words[start : start + size]).encode())
            ids.append(int.from_bytes(digest.digest()))
        return ids

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "vllm"}]})

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, _: web.Request) -> web.Response:
        self.catch_up()
        return web.Response(text=self.page())

    def page(self) -> str:
        """The page of vLLM, each replica with a label of its own: their sums and the fullest cache are those of the engine."""
        signals = self.engine.page()
        ranks = int(signals.ranks or 1)
        usage_of_others = 0.0
        fullest, mean = signals.kv_cache_usage_ratio_max or 0.0, signals.kv_cache_usage_ratio_mean or 0.0
        if ranks > 1:
            usage_of_others = (mean * ranks - fullest) / (ranks - 1)
        started_s = STARTED_UNIX_S + self._up_s
        lines = ["# TYPE process_start_time_seconds gauge", f"process_start_time_seconds {started_s}"]
        left = max(0, self._ranks - ranks) / max(1, self._ranks)
        self._ranks = ranks
        for name, kind, value in (
            ("num_requests_running", "gauge", signals.requests_running),
            ("num_requests_waiting", "gauge", signals.requests_waiting),
            ("kv_cache_usage_perc", "gauge", None),
            ("num_preemptions_total", "counter", signals.preemptions_total),
            ("prefix_cache_queries_total", "counter", signals.prefix_cache_queries_tokens_total or 0.0),
            ("prefix_cache_hits_total", "counter", signals.prefix_cache_hits_tokens_total or 0.0),
            ("prompt_tokens_total", "counter", signals.prompt_tokens_total),
            ("generation_tokens_total", "counter", signals.generation_tokens_total),
            ("request_success_total", "counter", signals.requests_finished_total),
        ):
            lines.append(f"# TYPE vllm:{name} {kind}")
            if value is not None and kind == "counter":
                self._gone[name] += left * (value - self._gone[name])
                value -= self._gone[name]
            for rank in range(ranks):
                share = fullest if rank == 0 else usage_of_others
                if value is not None:
                    share = int(value) // ranks + (rank < int(value) % ranks)
                reason = ',finished_reason="length"' if name == "request_success_total" else ""
                lines.append(f'vllm:{name}{{model_name="{MODEL}",engine="{rank}"{reason}}} {share}')
        for name, field_name in HISTOGRAMS.items():
            lines += _histogram(f"vllm:{name}", getattr(signals, field_name))
        for name, histogram in zip(TOKEN_LATENCIES, self.engine.token_latencies(), strict=True):
            lines += _histogram(f"vllm:{name}", histogram)
        blocks = self.engine.structure.kv_tokens // self.engine.structure.kv_block
        lines.append("# TYPE vllm:cache_config_info gauge")
        for rank in range(ranks):
            labels = f'block_size="{self.engine.structure.kv_block}",engine="{rank}",num_gpu_blocks="{blocks}"'
            lines.append(f"vllm:cache_config_info{{{labels}}} 1.0")
        return "\n".join(lines) + "\n"


def _histogram(name: str, histogram: EngineHistogram | None) -> list[str]:
    assert histogram is not None
    labels = f'model_name="{MODEL}",engine="0"'
    lines = [f"# TYPE {name} histogram"]
    for bound, count in zip((*map(str, histogram.bounds), "+Inf"), histogram.counts, strict=True):
        lines.append(f'{name}_bucket{{{labels},le="{bound}"}} {float(count)}')
    return [
        *lines,
        f"{name}_count{{{labels}}} {float(histogram.counts[-1])}",
        f"{name}_sum{{{labels}}} {histogram.sum}",
    ]
