"""Does a hostile target spoil the measurements of its neighbour? In one run it alternates between good answers and floods.

The daemon probes the mock at 20 requests a second and a server of raw bytes, written for this, at 0.6 a second, as the report of the
fault did. In every second block of BLOCK_S each answer of that server is a flood, of each kind in turn; in the others it answers like
a healthy engine. Compared are the mock's probes of both kinds of blocks: the share of `invalid`, and the errors of ITL and TTFT beside
the mock's own record. Noise is the difference between the blocks of good answers with odd and with even numbers.

Memory is the daemon's resident set at the end minus that after a third of the run.
"""

import argparse
import asyncio
import multiprocessing
import time
from collections.abc import Callable
from typing import Any

from bench.comparison import Pair, itl_errors_ms
from bench.report import goal, percentile, show
from bench.stage import Stage, free_port, stage

BLOCK_S = 20.0
KEPT = 400  # remembered probes: full after 20 s, so that memory does not grow by them; collected every 10 s
CONFIG = """
defaults: {{max_in_flight: 100}}
workloads:
  fixed: {{prompt_tokens: 64, output_tokens: 64}}
targets:
  - {{name: good, url: "{{mock}}", probes: [{{workload: fixed, rate: 20/s}}]}}
  - {{name: hostile, url: "http://127.0.0.1:{port}", model: m, metrics: {{url: none}}, probes: [{{workload: fixed, rate: 0.6/s}}]}}
"""
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
FLOODS: dict[str, Callable[[], bytes]] = {
    "100,000 empty objects": lambda: HEAD + b"\r\n" + b"data:{}\n\n" * 100_000,
    "100,000 chunks of content": lambda: HEAD + b"\r\n" + CHUNK * 100_000,
    "a million comments": lambda: HEAD + b"\r\n" + b":\n" * 1_000_000,
    "HTTP chunks of one byte": lambda: HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n:\r\n" * 400_000,
    "60 arrays of 1 MB": lambda: HEAD + b"\r\n" + (b'data: {"x":[' + b"1," * 499_000 + b"1]}\n\n") * 60,
    "words with [DONE] and error": lambda: HEAD + b"\r\n" + CHUNK.replace(b'"a"', b'"error [DONE]"') * 50_000,
}


def serve(port: int, begin_ns: int) -> None:
    """The server: good answers in even blocks from `begin_ns` on, floods in odd ones."""
    bodies = [make() for make in FLOODS.values()]
    answers = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answers
        try:
            await reader.readuntil(b"\r\n\r\n")
            if int((time.monotonic_ns() - begin_ns) / 1e9 / BLOCK_S) % 2:
                answers += 1
                writer.write(bodies[answers % len(bodies)])
                await writer.drain()
            else:
                writer.write(HEAD + b"\r\n")
                for _ in range(64):
                    writer.write(CHUNK)
                    await asyncio.sleep(0.01)
                writer.write(END)
            writer.close()
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()

    async def forever() -> None:
        server = await asyncio.start_server(handle, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(forever())


def measure(running: Stage, begin_ns: int, minutes: float) -> dict[str, Any]:
    """Probes of the good target by kind of block, outcomes of the hostile one, and memory in MB over time."""
    end_ns = begin_ns + int(minutes * 60e9)
    memory = []
    collected: dict[str, dict[str, Any]] = {}
    while time.monotonic_ns() < end_ns:
        time.sleep(10)
        memory.append(round(running.rss_mb(), 2))
        collected.update((probe["request_id"], probe) for probe in running.probes())
    time.sleep(3)
    truth = running.truth()
    probes = [probe for probe in collected.values() if begin_ns <= probe["stamps_ns"]["intended"]]
    good = [(p, truth[p["request_id"]]) for p in probes if p["outcome"] == "ok" and p["request_id"] in truth]

    def block(at_ns: int) -> int:
        return int((at_ns - begin_ns) / 1e9 / BLOCK_S)

    hostile: dict[str, int] = {}
    for probe in probes:
        if probe["target"] == "hostile" and block(probe["stamps_ns"]["intended"]) % 2:
            hostile[probe["outcome"]] = hostile.get(probe["outcome"], 0) + 1
    mine = [probe for probe in probes if probe["target"] == "good"]
    kinds: dict[str, Callable[[int], bool]] = {
        "good": lambda n: n % 2 == 0,
        "flood": lambda n: n % 2 == 1,
        "good, first half": lambda n: n % 4 == 0,
        "good, second half": lambda n: n % 4 == 2,
    }
    arms = {
        name: _arm(
            [p for p in mine if chosen(block(p["stamps_ns"]["intended"]))],
            [pair for pair in good if chosen(block(pair[0]["stamps_ns"]["intended"]))],
        )
        for name, chosen in kinds.items()
    }
    return {"arms": arms, "hostile_outcomes": hostile, "memory_mb": memory}


def _arm(probes: list[dict[str, Any]], good: list[Pair]) -> dict[str, Any]:
    itl = [error for _, error in itl_errors_ms(good)]
    timed = [(p, t) for p, t in good if p["ttft_s"] is not None]  # late ones have no latency
    ttft = [abs(p["ttft_s"] * 1e3 - (t["writes"][0] - t["received_ns"]) / 1e6) for p, t in timed]
    invalid = sum(probe["outcome"] == "invalid" for probe in probes)
    return {
        "probes": len(probes),
        "invalid_percent": round(100 * invalid / max(1, len(probes)), 3),
        "not_ok": sum(probe["outcome"] != "ok" for probe in probes),
        "itl_ms": {f"p{q * 100:g}": round(percentile(itl, q), 4) for q in (0.5, 0.99)},
        "ttft_ms": {f"p{q * 100:g}": round(percentile(ttft, q), 4) for q in (0.5, 0.99)},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=12.0)
    minutes = parser.parse_args().minutes
    port, warm_up_s = free_port(), 5
    begin_ns = time.monotonic_ns() + int((warm_up_s + 5) * 1e9)
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(port, begin_ns), daemon=True)
    server.start()
    try:
        with stage(CONFIG.format(port=port), history=KEPT) as running:
            time.sleep(max(0.0, (begin_ns - time.monotonic_ns()) / 1e9))
            found = measure(running, begin_ns, minutes)
    finally:
        server.terminate()
        server.join()
    flood, quiet = found["arms"]["flood"], found["arms"]["good"]
    halves = found["arms"]["good, first half"], found["arms"]["good, second half"]
    hostile, memory = found["hostile_outcomes"], found["memory_mb"]
    invalid = flood["invalid_percent"] - quiet["invalid_percent"]
    unseen = sum(hostile.values()) - hostile.get("malformed", 0)
    goals = [goal("invalid probes beside floods, minus those beside good answers", invalid, 0.5, "%")]
    for name, signal in (("ITL", "itl_ms"), ("TTFT", "ttft_ms")):
        noise = abs(halves[0][signal]["p99"] - halves[1][signal]["p99"])
        more = flood[signal]["p99"] - quiet[signal]["p99"]
        goals.append(
            goal(f"{name} error p99 beside floods, minus that beside good answers", more, max(0.5, noise), "ms")
        )
    goals.append(goal("floods that are not malformed", unseen, 0, "answers"))
    goals.append(goal("memory at the end, minus that after a third", memory[-1] - memory[len(memory) // 3], 5, "MB"))
    show("neighbour", goals, minutes=minutes, **found)


if __name__ == "__main__":
    main()
