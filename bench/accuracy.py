"""How true are the times? The daemon probes a server in C, which notes each write, and bare clients load the same server.

The server (`bench/independent/stream_server.c`) takes the time just before and just after each write of a token. Where the two are
further apart than CLOSE_NS it was itself interrupted, and the write does not count. The error of a stamp is its distance from the note
before the write, that of an ITL the difference between our gap and the server's. Chunks that were read together have no time of their
own, but an interval: counted is whether it holds the truth, give or take SLACK_NS by which two clocks are read apart.

A scene is a load and what is beside it; clients of a scene run one after the other. Processor time of the command `matrix`, its start
apart, is that of `bench.workers`, divided by that of a bare client in the same run. `--only NAME` plays one scene; each is played
`--rounds` times.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import trustme

from bench.report import goal, part, percentile, show
from bench.stage import PROGRAM, Stage, free_port, stage
from bench.workers import SOURCE, compared

CLOSE_NS, SLACK_NS = 50_000, 10_000
TOKENS, TTFT_MS = 64, 50
WARM_S = 4.0
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
FLOODS: dict[str, Callable[[], bytes]] = {
    "100,000 empty objects": lambda: HEAD + b"\r\n" + b"data:{}\n\n" * 100_000,
    "100,000 chunks of content": lambda: HEAD + b"\r\n" + CHUNK * 100_000,
    "a million comments": lambda: HEAD + b"\r\n" + b":\n" * 1_000_000,
    "HTTP chunks of one byte": lambda: HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n:\r\n" * 400_000,
    "60 arrays of 1 MB": lambda: HEAD + b"\r\n" + (b'data: {"x":[' + b"1," * 499_000 + b"1]}\n\n") * 60,
    "words with [DONE] and error": lambda: HEAD + b"\r\n" + CHUNK.replace(b'"a"', b'"error [DONE]"') * 50_000,
}
BUSY = """
import asyncio, time
from prober.net.clock import Clock

make = Clock.__init__

def busy(loop):
    end = time.monotonic() + 0.005
    while time.monotonic() < end:
        pass
    loop.call_later(0.045, busy, loop)

def made(self, *args, **options):
    make(self, *args, **options)
    loop = asyncio.get_running_loop()
    loop.call_later(1.0, busy, loop)

Clock.__init__ = made
import runpy, sys
sys.argv[0] = "prober"
runpy.run_module("prober", run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Scene:
    """A load of the daemon, what runs beside it, and the goals in ms. seconds: of the measurement"""

    name: str
    rate: float
    goal_first_ms: float
    goal_itl_ms: float
    itl_ms: float = 10
    seconds: float = 12
    is_secured: bool = False
    beside: str = ""


SCENES = (
    Scene("plain", 100, 0.06, 0.06),
    Scene("TLS", 100, 0.08, 0.08, is_secured=True),
    Scene("a page of 500 targets each second", 100, 0.12, 0.12, beside="page"),
    Scene("a neighbour's floods", 100, 0.12, 0.12, beside="flood"),
    Scene("5 ms of busy loop in 50", 100, 0.12, 0.12, beside="busy"),
    Scene("two spinning processes", 100, 1.0, 1.0, beside="spin"),
    Scene("5 requests/s, ITL 3 ms", 5, 0.12, 0.12, itl_ms=3, seconds=20),
    Scene("5 requests/s, ITL 10 ms", 5, 0.12, 0.12, seconds=20),
    Scene("250 requests/s", 250, 0.12, 0.12),
)


@contextmanager
def serving(folder: Path, itl_ms: float, certificate: Path | None, *more: str) -> Iterator[int]:
    """Port of a server that writes its notes into `folder`/truth when it ends. more: words of its command"""
    program, port = folder / "server", free_port()
    options = ["-DWITH_TLS", "-lssl", "-lcrypto"] if certificate else []
    subprocess.run(["gcc", "-O2", "-o", program, SOURCE, *options], check=True)
    environment = os.environ | {"STREAM_NOTES": "1"} | ({"STREAM_CERT": str(certificate)} if certificate else {})
    with (folder / "truth").open("wb") as out:
        server = subprocess.Popen([program, str(port), str(TTFT_MS), str(itl_ms), *more], stdout=out, env=environment)
        try:
            time.sleep(0.3)
            yield port
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(10)


@dataclass(frozen=True)
class Written:
    """What the server did for one request. writes: (before, after) of each chunk"""

    received_ns: int
    writes: list[tuple[int, int]]


def truth_of(folder: Path) -> dict[str, Written]:
    """The server's notes by request id."""
    written = {}
    for line in (folder / "truth").read_text().splitlines():
        received, _, _, request_id, *notes = line.split()
        at = [int(received) + int(note) for note in notes]
        written[request_id] = Written(int(received), list(zip(at[::2], at[1::2], strict=True)))
    return written


def errors(stamps: Sequence[int], written: Written) -> dict[str, list[float]]:
    """Errors in ms of one answer. merged: 1 for each chunk without a time of its own whose interval holds the truth, else 0"""
    found: dict[str, list[float]] = {"first": [], "itl": [], "merged": []}
    if len(stamps) != len(written.writes):
        return found
    exact: list[bool] = []
    for number, (stamp, (before, after)) in enumerate(zip(stamps, written.writes, strict=True)):
        is_merged = number + 1 < len(stamps) and stamps[number + 1] == stamp
        exact.append(not is_merged and after - before <= CLOSE_NS)
        if is_merged:
            earliest = max((other for other in stamps[:number] if other < stamp), default=0)
            found["merged"].append(float(earliest <= after + SLACK_NS and before <= stamp + SLACK_NS))
    if exact[0]:
        found["first"].append((stamps[0] - written.writes[0][0]) / 1e6)
    for (a, b), (c, d), is_exact in zip(
        pairwise(stamps), pairwise(before for before, _ in written.writes), pairwise(exact), strict=True
    ):
        if all(is_exact):
            found["itl"].append(abs((b - a) - (d - c)) / 1e6)
    return found


def summary(answers: dict[str, Sequence[int]], truth: dict[str, Written]) -> dict[str, Any]:
    """Errors over all answers."""
    found: dict[str, list[float]] = {"first": [], "itl": [], "merged": []}
    for request_id, stamps in answers.items():
        if request_id in truth:
            for name, values in errors(stamps, truth[request_id]).items():
                found[name] += values
    chunks = sum(map(len, answers.values()))
    return {
        "answers": len(found["first"]),
        "first_ms": spread(found["first"]),
        "itl_ms": spread(found["itl"]),
        "merged_ratio": round(len(found["merged"]) / max(1, chunks), 5),
        "merged_in_interval_ratio": round(statistics.fmean(found["merged"]), 4) if found["merged"] else None,
    }


def spread(values: list[float]) -> dict[str, float]:
    """Median and p99."""
    return {f"p{q * 100:g}": round(percentile(values, q), 4) for q in (0.5, 0.99)} if values else {}


def flood(port: int) -> None:
    """A server whose every answer is a flood."""
    bodies = [make() for make in FLOODS.values()]
    answers = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal answers
        try:
            await reader.readuntil(b"\r\n\r\n")
            answers += 1
            writer.write(bodies[answers % len(bodies)])
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        writer.close()

    async def forever() -> None:
        await (await asyncio.start_server(handle, "127.0.0.1", port)).serve_forever()

    asyncio.run(forever())


def spin() -> None:
    """Use a core."""
    while True:
        pass


@contextmanager
def process(work: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Another process meanwhile."""
    other = multiprocessing.get_context("spawn").Process(target=work, args=arguments, daemon=True)
    other.start()
    try:
        yield
    finally:
        other.kill()
        other.join()


@contextmanager
def page_each_second(running: Stage, probes: dict[str, Any]) -> Iterator[None]:
    """Read the page with all targets; and the last probes, as of many targets few are kept of each."""
    ended = threading.Event()

    def each(seconds: float, read: Callable[[], None]) -> None:
        while not ended.wait(seconds):
            with contextlib.suppress(OSError):  # no answer within 30 s, on a very busy machine
                read()

    def collect() -> None:
        probes.update((probe["request_id"], probe) for probe in running.probes("target=good&"))

    readers = [
        threading.Thread(target=each, args=(1.0, lambda: running.get("/")), daemon=True),
        threading.Thread(target=each, args=(0.3, collect), daemon=True),
    ]
    for reader in readers:
        reader.start()
    try:
        yield
    finally:
        ended.set()


def config(scene: Scene, port: int, flood_port: int, authority: Path | None) -> str:
    """The daemon's configuration."""
    url = f"{'https' if authority else 'http'}://127.0.0.1:{port}"
    tls = f", tls: {{ca_file: {authority}, server_name: localhost}}" if authority else ""
    same = f'url: "{url}", model: m, engine: vllm, metrics: {{url: none}}{tls}'
    lines = [
        f"defaults: {{rate: {scene.rate}/s, max_in_flight: 1000}}",
        "slos:",
        "  ttft: {signal: ttft, threshold: 500ms, objective: 99%}",
        "  itl: {signal: itl, threshold: 50ms, objective: 99%}",
        "workloads:",
        "  fixed:",
        "    prompt_tokens: {lognormal: {median: 128, sigma: 0.5, min: 32, max: 512}}",
        f"    output_tokens: {TOKENS}",
        "targets:",
        f"  - {{name: good, {same}, probes: [{{workload: fixed}}]}}",
    ]
    if scene.beside == "flood":
        hostile = f'url: "http://127.0.0.1:{flood_port}", model: m, metrics: {{url: none}}'
        lines.append(f"  - {{name: hostile, {hostile}, probes: [{{workload: fixed, rate: 1/s}}]}}")
    if scene.beside == "page":
        lines += [f"  - {{name: t{n}, {same}, probes: [{{workload: fixed, rate: 1/h}}]}}" for n in range(499)]
    return "\n".join(lines) + "\n"


def play(scene: Scene) -> dict[str, Any]:
    """One run of the daemon and of the bare clients."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prober-bench-")))
        certificate = authority = None
        if scene.is_secured:
            ca = trustme.CA()
            certificate, authority = folder / "server.pem", folder / "ca.pem"
            ca.cert_pem.write_to_path(str(authority))
            ca.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(certificate))
        flood_port = free_port()
        with serving(folder, scene.itl_ms, certificate) as port:
            if scene.beside == "flood":
                stack.enter_context(process(flood, flood_port))
            if scene.beside == "spin":
                stack.enter_context(process(spin))
                stack.enter_context(process(spin))
            program = ("-c", BUSY) if scene.beside == "busy" else PROGRAM
            history = round(4 * scene.rate * (scene.seconds + 20))
            with stage(config(scene, port, flood_port, authority), history=history, program=program) as running:
                time.sleep(WARM_S)
                collected: dict[str, Any] = {}
                with page_each_second(running, collected) if scene.beside == "page" else ExitStack():
                    cpu_s, begin_ns = running.cpu_s(), time.monotonic_ns()
                    time.sleep(scene.seconds)
                    cpu_s, end_ns = running.cpu_s() - cpu_s, time.monotonic_ns()
                time.sleep(1.5)
                sources = re.findall(r'llmslo_stamps_total{source="(\w+)"} (\S+)', running.get("/metrics").decode())
                probes = [
                    probe
                    for probe in (collected | {probe["request_id"]: probe for probe in running.probes()}).values()
                    if probe["target"] == "good" and begin_ns <= probe["stamps_ns"]["intended"] < end_ns
                ]
            command = [sys.executable, "-m", "bench.floor"]
            load = [str(port), str(scene.rate), str(scene.seconds), *([str(authority)] if authority else [])]
            nulls = {
                kind: json.loads(
                    subprocess.run([*command, kind, *load], check=True, capture_output=True, timeout=120).stdout
                )
                for kind in (("user",) if scene.is_secured else ("user", "kernel"))
            }
        truth = truth_of(folder)
    good = {probe["request_id"]: probe for probe in probes if probe["outcome"] == "ok"}
    answers = {request_id: probe["stamps_ns"]["content"] for request_id, probe in good.items()}
    ttft_ms = [
        probe["ttft_s"] * 1e3 - (written.writes[0][0] - written.received_ns) / 1e6
        for request_id, probe in good.items()
        if probe["ttft_s"] is not None
        and (written := truth.get(request_id))
        and written.writes
        and written.writes[0][1] - written.writes[0][0] <= CLOSE_NS
    ]
    outcomes = [probe["outcome"] for probe in probes]
    lags_ms = [probe["send_lag_s"] * 1e3 for probe in probes if probe["send_lag_s"] is not None]
    chunks = sum(len(probe["stamps_ns"]["content"]) for probe in probes)
    return {
        "prober": summary(answers, truth)
        | {
            "ttft_ms": spread(ttft_ms),
            "reads_by": dict(sources),
            "send_lag_ms": spread(lags_ms),
            "cpu_s_per_1k_tokens": round(cpu_s / max(1, chunks) * 1e3, 4),
            "outcomes": {outcome: outcomes.count(outcome) for outcome in set(outcomes)},
        },
        **{
            kind: summary(
                # the first piece is the head of the answer, and the last its end
                {
                    key: stamps[1 : TOKENS + 1]
                    for key, stamps in null["stamps"].items()
                    if TOKENS + 1 <= len(stamps) <= TOKENS + 2
                },
                truth,
            )
            | {"cpu_s_per_1k_tokens": null["cpu_s_per_1k_pieces"]}
            for kind, null in nulls.items()
        },
        "load_1m": round(os.getloadavg()[0], 1),
    }


def goals_of(scene: Scene, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The goals of a scene, of the medians over its rounds."""
    ours = [run["prober"] for run in runs]

    def median(name: str, q: str = "p99") -> float:
        found: float = statistics.median(run[name].get(q, 1e9) for run in ours)
        return found

    goals = [
        goal(f"{scene.name}: stamp of the first token, error p99", median("first_ms"), scene.goal_first_ms, "ms"),
        goal(f"{scene.name}: ITL error p99", median("itl_ms"), scene.goal_itl_ms, "ms"),
    ]
    if any(run["merged_ratio"] for run in ours):
        outside = 1 - min(1.0 if (r := run["merged_in_interval_ratio"]) is None else r for run in ours)
        goals.append(goal(f"{scene.name}: share of intervals without the truth", outside, 0.0, ""))
    if scene.name == "250 requests/s":
        invalid, every = (
            sum(sum(n for outcome, n in run["outcomes"].items() if outcome in chosen) for run in ours)
            for chosen in ({"invalid"}, {outcome for run in ours for outcome in run["outcomes"]})
        )
        goals.append(goal("share of invalid probes at 250 requests/s", invalid / every, 0.01, ""))
    if scene.name == "plain":
        goals += [
            goal("send lag p99", median("send_lag_ms"), 2, "ms"),
            goal("TTFT error p99", median("ttft_ms"), 0.6, "ms"),
            goal(
                "the daemon's processor time per 1,000 tokens",
                statistics.median(run["cpu_s_per_1k_tokens"] for run in ours),
                0.042,
                "s",
            ),
        ]
    return goals


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="name of a scene, or matrix")
    arguments = parser.parse_args()
    scenes = [scene for scene in SCENES if arguments.only in (None, scene.name)]
    runs: dict[str, list[dict[str, Any]]] = {scene.name: [] for scene in scenes}
    for _ in range(arguments.rounds):
        for scene in scenes:
            runs[scene.name].append(part(scene.name, play(scene)))
    goals = [each for scene in scenes for each in goals_of(scene, runs[scene.name])]
    matrix = {}
    if arguments.only in (None, "matrix"):
        bare = [part("bare", play(SCENES[0]))["user"]["cpu_s_per_1k_tokens"] for _ in range(2)]
        matrix = compared([(1, 100.0)], 1)[1, 100.0]
        ratio = matrix["cpu_s_per_1k_tokens"] / statistics.fmean(bare)
        goals.append(goal("processor time of `matrix` ÷ that of a bare client", ratio, 1.2, ""))
    show("accuracy", goals, runs=runs, matrix={name: value for name, value in matrix.items() if name != "runs"})


if __name__ == "__main__":
    main()
