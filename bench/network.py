"""Are network and server told apart? A daemon probes a server in a network namespace, over a path that delays or loses packets.

The path is a pair of TUN devices with a program between them, so that TCP runs from end to end: 50 ms more each way, or one packet in
ten lost. A relay is a proxy that ends TCP and holds what it passes on for 50 ms: the kernel cannot see behind it, and says so little.
Each scene begins with a minute as usual. Then one thing changes, and the daemon has two minutes to name what happens. Counted are the
cause it names, and the time until the server's host has acknowledged a request (`network_s`), beside what the path adds.

Needs root, network namespaces and /dev/net/tun.
"""

import argparse
import asyncio
import contextlib
import fcntl
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from bench.quota import daemon
from bench.report import goal, show
from bench.stage import free_port

USUAL_S, CHANGED_S = 70.0, 150.0
ADDED_S, LOST = 0.05, 0.1
TTFT_S, ITL_S, TOKENS = 0.05, 0.01, 16
HERE, THERE, PORT = "10.77.0.1", "10.77.0.2", 8000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
CHUNK = b'data: {"choices": [{"index": 0, "delta": {"content": " word"}, "finish_reason": null}]}\n\n'
END = (
    b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}\n\n'
    b'data: {"choices": [], "usage": {"prompt_tokens": 64, "completion_tokens": %d, "total_tokens": %d}}\n\ndata: [DONE]\n\n'
)


@dataclass(frozen=True)
class Scene:
    """What changes. path: seconds that the path adds each way; lost: share of packets; server, relay: seconds that these add

    named: the cause that must be named; "" if any but `network`
    """

    name: str
    path_s: float = 0.0
    lost: float = 0.0
    server_s: float = 0.0
    relay_s: float = 0.0
    named: str = "network"


SCENES = (
    Scene("path of 50 ms more each way", path_s=ADDED_S),
    Scene("one packet in ten lost", lost=LOST),
    Scene("a relay that holds for 50 ms", relay_s=ADDED_S),
    Scene("a server 100 ms slower", server_s=2 * ADDED_S, named=""),
)


def tun(name: str) -> int:
    """Descriptor of a new TUN device in the network namespace of this process."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return descriptor


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def path(namespace: str, name: str, scene: Scene, changed: Event, ready: Event) -> None:
    """The program between the two devices."""
    ends = [tun(f"{name}a"), tun(f"{name}b")]
    _ip("link", "set", f"{name}b", "netns", namespace)
    _ip("addr", "add", HERE, "peer", THERE, "dev", f"{name}a")
    _ip("link", "set", f"{name}a", "up")
    for words in (
        ("addr", "add", THERE, "peer", HERE, "dev", f"{name}b"),
        ("link", "set", f"{name}b", "up"),
        ("link", "set", "lo", "up"),
    ):
        _ip("-n", namespace, *words)
    draws = random.Random(1)

    async def forward() -> None:
        loop = asyncio.get_running_loop()

        def take(source: int, sink: int) -> None:
            with contextlib.suppress(BlockingIOError):
                while packet := os.read(source, 65536):
                    if changed.is_set() and draws.random() < scene.lost:
                        continue
                    loop.call_later(scene.path_s if changed.is_set() else 0.0, os.write, sink, packet)

        for source, sink in (ends, ends[::-1]):
            loop.add_reader(source, take, source, sink)
        ready.set()
        await asyncio.Event().wait()

    asyncio.run(forward())


def server(scene: Scene, changed: Event) -> None:
    """The engine, in the namespace in which it was started."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(
                next(
                    (
                        line.split(b":")[1]
                        for line in head.lower().split(b"\r\n")
                        if line.startswith(b"content-length:")
                    ),
                    b"0",
                )
            )
            await reader.readexactly(length)
            if not head.startswith(b"POST"):
                body = json.dumps(
                    {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "vllm"}]}
                ).encode()
                status = b"200 OK" if b"/models " in head else b"404 Not Found"
                writer.write(
                    b"HTTP/1.1 %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(body), body)
                )
            else:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
                await asyncio.sleep(TTFT_S + (scene.server_s if changed.is_set() else 0.0))
                for _ in range(TOKENS):
                    writer.write(CHUNK)
                    await asyncio.sleep(ITL_S)
                writer.write(END % (TOKENS, TOKENS + 64))
            await writer.drain()
        writer.close()

    async def serve() -> None:
        await (await asyncio.start_server(answer, THERE, PORT)).serve_forever()

    asyncio.run(serve())


def _server_in(namespace: str, scene: Scene, changed: Event) -> None:
    with open(f"/run/netns/{namespace}") as file:
        os.setns(file.fileno()) if hasattr(os, "setns") else _setns(file.fileno())
    server(scene, changed)


def _setns(descriptor: int) -> None:
    """`os.setns`, which Python has since 3.12."""
    import ctypes

    if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0x40000000) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def relay(port: int, scene: Scene, changed: Event) -> None:
    """A proxy that ends TCP and holds what it passes on."""

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while data := await reader.read(65536):
            loop.call_later(scene.relay_s if changed.is_set() else 0.0, writer.write, data)
        loop.call_later((scene.relay_s if changed.is_set() else 0.0) + 0.001, writer.close)

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            there, back = await asyncio.open_connection(THERE, PORT)
            await asyncio.gather(pipe(reader, back), pipe(there, writer))

    async def serve() -> None:
        await (await asyncio.start_server(passed, "127.0.0.1", port)).serve_forever()

    asyncio.run(serve())


@contextmanager
def running(work: Any, *arguments: Any) -> Iterator[None]:
    """A process meanwhile."""
    process = get_context("fork").Process(target=work, args=arguments, daemon=True)
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def play(scene: Scene) -> dict[str, Any]:
    """One scene: causes that are named, and medians of TTFT and network time before and after the change, in ms."""
    changed, ready = get_context("fork").Event(), get_context("fork").Event()
    namespace, device = f"prober-bench-{os.getpid()}", f"pb{os.getpid() % 100000}"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prober-bench-")))
        _ip("netns", "add", namespace)
        stack.callback(_ip, "netns", "del", namespace)
        stack.enter_context(running(path, namespace, device, scene, changed, ready))
        ready.wait(10)
        stack.enter_context(running(_server_in, namespace, scene, changed))
        address = f"{THERE}:{PORT}"
        if scene.relay_s:
            port = free_port()
            stack.enter_context(running(relay, port, scene, changed))
            address = f"127.0.0.1:{port}"
        time.sleep(1.0)
        config = "\n".join(
            (
                "defaults: {rate: 4/s, max_in_flight: 100, warmup: 0}",
                f"workloads: {{w: {{prompt_tokens: 64, output_tokens: {TOKENS}}}}}",
                "slos: {ttft: {signal: ttft, threshold: 80ms, objective: 95%}}",
                f"targets: [{{name: t, url: 'http://{address}', model: m, engine: vllm, metrics: {{url: none}}, "
                "probes: [{workload: w}]}]",
            )
        )
        it = stack.enter_context(daemon(folder, "network", config + "\n"))
        time.sleep(USUAL_S)
        changed_s = time.time()
        changed.set()
        causes: dict[str, float] = {}
        while time.time() < changed_s + CHANGED_S:
            time.sleep(2)
            diagnosis = json.loads(it.get("/api/v1/targets"))["data"][0].get("diagnosis") or {}
            for cause in diagnosis.get("regimes") or ():
                causes.setdefault(cause, round(time.time() - changed_s, 1))
        probes = json.loads(it.get("/api/v1/probes?limit=100000"))["data"]

    def median_ms(name: str, since: bool) -> float | None:
        values = [probe[name] for probe in probes if (probe["time"] >= changed_s) == since and probe[name] is not None]
        return round(statistics.median(values) * 1e3, 3) if values else None

    return {
        "causes": causes,
        "ttft_ms": [median_ms("ttft_s", since) for since in (False, True)],
        "network_ms": [median_ms("network_s", since) for since in (False, True)],
        "retransmitted": sum(probe["retransmitted"] or 0 for probe in probes if probe["time"] >= changed_s),
        "probes": len(probes),
    }


def main() -> None:
    """Play the chosen scenes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=[scene.name for scene in SCENES])
    chosen = parser.parse_args().only
    goals, raw = [], {}
    for scene in SCENES:
        if chosen and scene.name not in chosen:
            continue
        row = raw[scene.name] = play(scene)
        print(json.dumps({scene.name: row}), file=sys.stderr, flush=True)
        wrong = set(row["causes"]) - {"unknown"} - ({scene.named} if scene.named else {"slow_prefill", "queueing"})
        is_right = not scene.named or scene.named in row["causes"]
        goals.append(goal(f"{scene.name}: wrong causes named", float(len(wrong)), 0, ""))
        goals.append(goal(f"{scene.name}: the right cause is missing", float(not is_right), 0, ""))
        before, after = row["network_ms"]
        if before is not None and after is not None and not scene.lost:
            goals.append(
                goal(
                    f"{scene.name}: error of the added network time", abs(after - before - 2e3 * scene.path_s), 5, "ms"
                )
            )
    show("network", goals, **raw)


if __name__ == "__main__":
    main()
