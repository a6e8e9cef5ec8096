"""Cost of any client on this machine's event loop: a bare protocol that sends, stamps each piece, and understands nothing.

No HTTP parser, no events, no JSON, no series: what a prober costs above this is its own work. Prints processor seconds per
1,000 pieces as one JSON object; `bench.accuracy` runs it beside the daemon, against the same mock.
"""

import asyncio
import json
import resource
import sys
import time
from typing import cast

import uvloop

BODY = json.dumps(
    {
        "model": "mock",
        "max_tokens": 64,
        "stream": True,
        "ignore_eos": True,
        "min_tokens": 64,
        "messages": [{"role": "user", "content": "time people way " * 40}],
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
).encode()
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n"
)


class Stamps(asyncio.Protocol):
    """One request; the stamps of what came."""

    def __init__(self) -> None:
        self.stamps: list[int] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(HEAD % len(BODY) + BODY)

    def data_received(self, data: bytes) -> None:
        self.stamps.append(time.monotonic_ns())


async def load(port: int, rate: float, seconds: float) -> int:
    """Requests at a constant rate; the number of pieces that came."""
    loop = asyncio.get_running_loop()
    found: list[Stamps] = []
    waiting: set[asyncio.Task[object]] = set()

    def one() -> Stamps:
        found.append(Stamps())
        return found[-1]

    begin = loop.time()
    for i in range(round(rate * seconds)):
        await asyncio.sleep(max(0.0, begin + i / rate - loop.time()))
        task: asyncio.Task[object] = asyncio.create_task(loop.create_connection(one, "127.0.0.1", port))
        waiting.add(task)
        task.add_done_callback(waiting.discard)
    await asyncio.sleep(1.5)
    return sum(len(each.stamps) for each in found)


def main() -> None:
    """floor PORT RATE SECONDS"""
    port, rate, seconds = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    before = resource.getrusage(resource.RUSAGE_SELF)
    pieces = uvloop.run(load(port, rate, seconds))
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"pieces": pieces, "cpu_s_per_1k_pieces": round(cpu / pieces * 1e3, 4)}))


if __name__ == "__main__":
    main()
