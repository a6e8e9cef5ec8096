"""Where did a probe's time go? What a real vLLM tells of each request, against the kernel's stamps, and the cause named from it.

    python -m bench.parts --engine FOLDER --model FOLDER [--probes 55] [--limit 0.4]

The folders are those of `bench.real_sweeps`. The engine has eight slots, runs on one core and tells its parts; the prober has the other
core and reads no page, as of a managed API. Each scene is played on the engine as it is, and with a CPU limit (`--limit`, in cores;
0: without; needs root and the controller `cpu`). Its largest part is known from how it is made:

- `decode`: an answer of 96 tokens on the idle engine; `prefill`: a prompt of 600 words and two tokens;
- `queue`: eight tokens, while twelve streams of 100 tokens take all slots; its neighbour `busy` has five, so that nothing waits;
- `gateway`: a relay that holds each request for 300 ms and says so in LiteLLM's header.

Counted are the probes with parts, those whose largest part is the true one, and the difference between the parts before the first token
and the TTFT, and between the told decode time and the time between first and last content by the kernel. The diagnosis compares
windows of 25 probes of eight tokens with the idle engine's; the name of each scene is known too.
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from bench.quota import Cgroup
from bench.real_sweeps import Engine
from bench.report import goal, part, percentile, show
from bench.stage import free_port
from prober.config.load import load
from prober.features.diagnosis.clues import Symptoms
from prober.features.diagnosis.diagnosis import diagnose
from prober.features.diagnosis.window import window_features
from prober.measure.engines import DIALECTS
from prober.measure.outcome import ANSWERED
from prober.measure.result import ProbeResult
from prober.net.clock import Clock
from prober.probing.probe import run_probe
from prober.probing.target import Target
from prober.workload.workloads import RequestGenerator

HELD_S = 0.3
PACE_S = 0.5  # between probes
WINDOW = 25  # probes of a window: the diagnosis takes medians of 20 or more
STREAM_TOKENS = 100
THRESHOLD_S = 0.2  # of the TTFT, which is said to be breached


@dataclass(frozen=True)
class Scene:
    """What is sent, and what must be seen.

    streams: other requests at a time; through_relay: by way of the gateway
    largest: parts of which one must be the largest; named: names of which one must be given, None: not judged
    """

    name: str
    prompt_tokens: int
    output_tokens: int
    largest: frozenset[str]
    streams: int = 0
    through_relay: bool = False
    named: frozenset[str] | None = None


NO_QUEUE = frozenset({"unknown", "slow_decode", "slow_prefill", "network"})
WORK = frozenset({"prefill", "decode"})
SCENES = (
    Scene("idle", 40, 8, WORK),
    Scene("decode", 40, 96, frozenset({"decode"})),
    Scene("prefill", 600, 2, frozenset({"prefill"})),
    Scene("queue", 40, 8, frozenset({"queue"}), streams=12, named=frozenset({"queueing"})),
    Scene("busy", 40, 8, WORK, streams=5, named=NO_QUEUE),
    Scene("gateway", 40, 8, frozenset({"gateway"}), through_relay=True, named=frozenset({"network"})),
)


async def relay(port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass a request and its answer on, HELD_S late, and tell of it in a header."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0
        )
        request = head + await reader.readexactly(length)
        if length:
            await asyncio.sleep(HELD_S)
        engine, back = await asyncio.open_connection("127.0.0.1", port)
        back.write(request)
        answer = await engine.readuntil(b"\r\n\r\n")
        writer.write(answer[:-2] + f"x-litellm-overhead-duration-ms: {1e3 * HELD_S}\r\n\r\n".encode())
        while data := await engine.read(1 << 16):
            writer.write(data)
    writer.close()


async def stream(port: int, number: int, ended: asyncio.Event) -> None:
    """Ask for one answer after the other."""
    draws = Random(number)
    while not ended.is_set():
        words = " ".join(f"w{draws.getrandbits(24)}" for _ in range(20))
        body = {"model": "tiny", "max_tokens": STREAM_TOKENS, "ignore_eos": True, "stream": True, "prompt": words}
        text = json.dumps(body)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(
            f"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nConnection: close\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(text)}\r\n\r\n{text}".encode()
        )
        await reader.read()
        writer.close()


def load_beside(port: int, streams: int, ended: threading.Event) -> None:
    """Streams of their own thread, so that the probes' loop is not theirs."""

    async def run() -> None:
        stop = asyncio.Event()
        tasks = [asyncio.create_task(stream(port, number, stop)) for number in range(streams)]
        await asyncio.to_thread(ended.wait)
        stop.set()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(run())


async def probes_of(scene: Scene, port: int, count: int) -> list[ProbeResult]:
    """Send the probes of a scene, PACE_S apart, each without waiting for the one before."""
    relays = await asyncio.start_server(lambda reader, writer: relay(port, reader, writer), "127.0.0.1", 0)
    gate = relays.sockets[0].getsockname()[1]
    text = (
        f"workloads: {{w: {{prompt_tokens: {scene.prompt_tokens}, output_tokens: {scene.output_tokens}}}}}\n"
        f"targets: [{{url: 'http://127.0.0.1:{gate if scene.through_relay else port}', model: tiny, engine: vllm, "
        "metrics: {url: none}, warmup: 0, probes: [{workload: w}]}]"
    )
    spec = load(text, source="bench", engines=DIALECTS, environment={}, read=lambda path: path).targets[0]
    with closing(Clock()) as clock:
        target = Target(spec, clock)
        await target.identify()
        drawer = RequestGenerator(spec.probes[0].workload, Random(len(scene.name)))
        runs = []
        for _ in range(count):
            runs.append(asyncio.create_task(run_probe(target, drawer, clock.now_ns() + 100_000_000)))
            await asyncio.sleep(PACE_S)
        results = [result for result in await asyncio.gather(*runs) if result is not None]
    relays.close()
    return results


def figures(scene: Scene, results: Sequence[ProbeResult], usual: Sequence[ProbeResult]) -> dict[str, Any]:
    """How often the parts are told, right, and fit; and the names of the diagnosis."""
    answered = [it for it in results if it.outcome in ANSWERED and not it.warm_up and not it.cached]
    told = [(result.timeline, parts.known()) for result in answered if (parts := result.timeline.parts) is not None]
    whole = [(line, parts) for line, parts in told if {"queue", "prefill", "decode"} <= parts.keys()]
    largest = Counter(max(parts, key=lambda name: parts[name]) for _, parts in whole)
    rests_ms, decodes_ms = list[float](), list[float]()
    for line, known in whole:
        before_s = sum(seconds for name, seconds in known.items() if name != "decode")
        if line.ttft_s is not None:
            rests_ms.append(1e3 * (line.ttft_s - before_s))
        decodes_ms.append(abs(1e3 * known["decode"] - (line.content_ns[-1] - line.content_ns[0]) / 1e6))
    names = Counter[str]()
    timed = [result for result in answered if result.timeline.ttft_s is not None]  # a busy machine reads some late
    for start in range(0, len(timed) - WINDOW + 1, WINDOW):
        now, before = window_features(timed[start : start + WINDOW]), window_features(usual)
        names["+".join(diagnose(Symptoms(now, before, {"ttft": THRESHOLD_S}, "vllm")).regimes)] += 1
    ttfts_ms = [1e3 * line.ttft_s for line, _ in told if line.ttft_s is not None]
    return {
        "answered": len(answered),
        "with_parts": len(whole),
        "largest": dict(largest),
        "mean_ms": {name: round(1e3 * sum(known[name] for _, known in whole) / len(whole), 1) for name in whole[0][1]}
        if whole
        else {},
        "largest_right": sum(largest[name] for name in scene.largest),
        "ttft_ms": spread(ttfts_ms),
        "before_first_token_not_told_ms": spread(rests_ms),
        "decode_off_ms": spread(decodes_ms),
        "timed": len(timed),
        "names": dict(names),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and p90, to 0.1 ms."""
    return {name: round(percentile(values, q), 1) for name, q in (("p50", 0.5), ("p90", 0.9))} if values else {}


@contextmanager
def limited(engine: Engine, limit: float) -> Iterator[None]:
    """Move all processes of the engine into a cgroup with a CPU limit, and back at the end."""
    listed = subprocess.run(["ps", "-o", "pid=", "-s", str(engine.pid)], capture_output=True, text=True, check=True)
    with Cgroup("engine", limit) as group:
        for pid in listed.stdout.split():
            (group.folder / "cgroup.procs").write_text(pid)
        try:
            yield
        finally:
            for pid in listed.stdout.split():
                with contextlib.suppress(OSError):
                    (group.folder.parent / "cgroup.procs").write_text(pid)


def played(engine: Engine, port: int, count: int, usual: Sequence[ProbeResult]) -> dict[str, Any]:
    """All scenes, one after the other. usual: probes of the idle engine; empty: those of this run"""
    found: dict[str, Any] = {"probes": list(usual)}
    for scene in SCENES:
        ended = threading.Event()
        beside = threading.Thread(target=load_beside, args=(port, scene.streams, ended))
        beside.start()
        results = asyncio.run(probes_of(scene, port, count))
        ended.set()
        beside.join()
        found["probes"] = found["probes"] or results
        found[scene.name] = part(scene.name, figures(scene, results, found["probes"]))
    return found


def goals_of(words: str, found: dict[str, Any], wrong: float) -> list[dict[str, Any]]:
    """wrong: largest share of probes whose largest part may be another one"""
    rows = [(scene, found[scene.name]) for scene in SCENES]
    answered, with_parts = (sum(row[key] for _, row in rows) for key in ("answered", "with_parts"))
    right = sum(row["largest_right"] for _, row in rows)
    judged = [(scene.named, name, n) for scene, row in rows if scene.named for name, n in row["names"].items()]
    windows = sum(n for _, _, n in judged)
    misnamed = sum(n for named, name, n in judged if not named & set(name.split("+")))
    false = sum(n for named, name, n in judged if "queueing" not in named and "queueing" in name)
    return [
        goal(f"{words}: share of answers without parts", 1 - with_parts / answered, 0.01, ""),
        goal(f"{words}: share whose largest part is another one", 1 - right / max(1, with_parts), wrong, ""),
        goal(f"{words}: share of windows without the right name", misnamed / max(1, windows), 0.1, ""),
        goal(f"{words}: windows called queueing where nothing waits", false, 0, ""),
    ]


def main() -> None:
    """Play all scenes on the engine as it is, and with a limit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--probes", type=int, default=2 * WINDOW + 5)
    parser.add_argument("--limit", type=float, default=0.4)
    chosen = parser.parse_args()
    raw: dict[str, Any] = {}
    goals: list[dict[str, Any]] = []
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prober-bench-")))
        port = free_port()
        engine = Engine(chosen.engine, chosen.model, port, scratch, ("--enable-per-request-metrics",))
        stack.callback(engine.stop)
        os.sched_setaffinity(0, {1})
        asyncio.run(probes_of(SCENES[1], port, 10))  # its first requests are slower
        found = played(engine, port, chosen.probes, ())
        goals += goals_of("as it is", found, 0.05)
        usual = found.pop("probes")
        raw["as it is"] = found
        if chosen.limit:
            with limited(engine, chosen.limit):
                words = f"{chosen.limit} cores"
                found = played(engine, port, chosen.probes, ())
            slower = diagnose(
                Symptoms(window_features(found.pop("probes")), window_features(usual), {"ttft": 0.05}, "vllm")
            )
            raw[words] = found | {"idle, against the usual": slower.regimes}
            goals += goals_of(words, found, 0.1)
            goals.append(goal("a slower engine is called queueing", "queueing" in slower.regimes, 0, ""))
    show("parts", goals, **raw)


if __name__ == "__main__":
    main()
