"""Clock: every client sends the same load to a server that notes each write, at two rates, and at one beside two spinning processes.

The server (`bench/independent/stream_server.c`) keeps connections and sends answers of 64 tokens. Requests are paired with its notes in
the order in which they were sent. TTFT is as each client defines it: all count from sending, ours from the kernel's time of departure.
Arrivals are random, so the rate reached varies by chance too. Processor time and memory are of all processes of a client. The start is
the time from the call to the first request that arrives.
"""

import contextlib
import os
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.accuracy import TOKENS, process, serving, spin
from bench.report import goal, part, percentile
from bench.rivals.clients import CLIENTS, OURS, Client, Load, Run, Seen, run

ITL_MS = 10
TIMEOUT_S = 120.0
MISSING = 1e9  # of a figure that ours has not


@dataclass(frozen=True)
class Scene:
    """A load. has_neighbours: two spinning processes beside it"""

    name: str
    rate_per_s: float
    seconds: float
    has_neighbours: bool = False


SCENES = (
    Scene("5 requests/s", 5, 10),
    Scene("100 requests/s", 100, 7),
    Scene("100 requests/s beside two spinning processes", 100, 5, has_neighbours=True),
)


@dataclass(frozen=True)
class Answer:
    """The server's note of an answer. gaps_s: between the writes of its tokens"""

    received_ns: int
    ttft_s: float
    gaps_s: tuple[float, ...]


def notes(folder: Path) -> list[Answer]:
    """The server's notes, by arrival."""
    answers = []
    for line in (folder / "truth").read_text().splitlines():
        received, first, _, _, _, *at = line.split()
        writes = list(map(int, at[::2]))
        gaps_s = tuple((later - earlier) / 1e9 for earlier, later in pairwise(writes))
        answers.append(Answer(int(received), (int(first) - int(received)) / 1e9, gaps_s))
    return sorted(answers, key=lambda answer: answer.received_ns)


def measure(client: Client, clients: Path, scene: Scene, timeout_s: float) -> dict[str, Any]:
    """A client's figures in a scene."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prober-bench-")))
        if scene.has_neighbours:
            stack.enter_context(process(spin))
            stack.enter_context(process(spin))
        with serving(folder, ITL_MS, None, "0") as port:  # "0": in chunks, on connections that stay
            requests = round(scene.rate_per_s * scene.seconds)
            load = Load(clients, folder, f"http://127.0.0.1:{port}", scene.rate_per_s, requests, TOKENS)
            done = run(client, load, timeout_s)
        return figures(client, scene, done, notes(folder))


def figures(client: Client, scene: Scene, done: Run, answers: list[Answer]) -> dict[str, Any]:
    """Figures of a run. answers: all that the server gave; those of a warm-up first"""
    found: dict[str, Any] = {"command": done.command, "load_1m": round(os.getloadavg()[0], 1)}
    if done.seen is None or not answers:
        return found | {"problem": done.problem or "sent nothing"}
    sent = answers[len(answers) - len(done.seen) :]
    if len(sent) < len(done.seen):
        return found | {"problem": f"reports {len(done.seen)} requests, and sent {len(sent)}"}
    pairs = [(seen, truth) for seen, truth in zip(done.seen, sent, strict=True) if seen.is_success]
    ttft_ms = [abs(seen.ttft_s - truth.ttft_s) * 1e3 for seen, truth in pairs if seen.ttft_s is not None]
    by_answer = [itl_errors_ms(client, seen, truth) for seen, truth in pairs]
    compared, itl_ms = sum(map(bool, by_answer)), [error for errors in by_answer for error in errors]
    seconds = (sent[-1].received_ns - sent[0].received_ns) / 1e9
    return found | {
        "requests": len(done.seen),
        "failed": sum(not seen.is_success and not seen.is_set_aside for seen in done.seen),
        "set_aside": sum(seen.is_set_aside for seen in done.seen),
        "ttft_error_ms": spread(ttft_ms),
        "itl_error_ms": spread(itl_ms),
        "itl_of": "gaps" if client.has_gaps else "means",
        "itl_answers_compared_ratio": round(compared / max(1, len(pairs)), 3),
        "rate_per_s": round((len(sent) - 1) / seconds, 2),
        "cpu_s_per_1k_tokens": round(done.cpu_s / (sum(len(answer.gaps_s) + 1 for answer in answers) / 1e3), 4),
        "memory_mb": round(done.memory_mb),
        "start_s": round((answers[0].received_ns - done.began_ns) / 1e9, 2),
        "wall_s": round(done.wall_s, 1),
    }


def itl_errors_ms(client: Client, seen: Seen, truth: Answer) -> list[float]:
    """Errors of the gaps of an answer, or of their mean. None where a client read tokens together and reports fewer gaps.

    Some count the chunk with the finish reason as one more.
    """
    if not client.has_gaps:
        mean_s = sum(truth.gaps_s) / len(truth.gaps_s)
        return [abs(itl_s - mean_s) * 1e3 for itl_s in seen.itls_s]
    if len(seen.itls_s) < len(truth.gaps_s):
        return []
    return [abs(ours - true) * 1e3 for ours, true in zip(seen.itls_s, truth.gaps_s, strict=False)]


def spread(values: list[float]) -> dict[str, float]:
    """Median and p99."""
    return {f"p{q * 100:g}": round(percentile(values, q), 3) for q in (0.5, 0.99)} if values else {}


def play(clients: Path, deadline_s: float) -> dict[str, dict[str, Any]]:
    """All scenes by all clients, until the deadline of the monotonic clock."""
    found: dict[str, dict[str, Any]] = {}
    for scene in SCENES:
        found[scene.name] = {}
        for client in CLIENTS:
            if (left_s := deadline_s - time.monotonic()) < scene.seconds:
                found[scene.name][client.name] = {"problem": "no time was left"}
                continue
            measured = measure(client, clients, scene, min(TIMEOUT_S, left_s))
            found[scene.name][client.name] = part(f"clock, {scene.name}, {client.name}", measured)
    return found


FIGURES = (
    ("ttft_error_ms", "p99", "TTFT error p99", "ms"),
    ("itl_error_ms", "p99", "ITL error p99", "ms"),
    ("cpu_s_per_1k_tokens", "", "processor time per 1,000 tokens, start included", "s"),
    ("memory_mb", "", "memory", "MB"),
    ("start_s", "", "start", "s"),
)


def goals(found: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours at most the best of the others, for each figure; only gaps are compared with gaps."""
    results = []
    for scene in SCENES:
        runs = found[scene.name]
        for key, quantile, title, unit in FIGURES:
            values = {
                name: of[key][quantile] if quantile else of[key]
                for name, of in runs.items()
                if of.get(key) and not (key == "itl_error_ms" and of["itl_of"] == "means")
            }
            ours = values.pop(OURS.name, MISSING)
            if values:
                best = min(values, key=lambda name: values[name])
                results.append(goal(f"clock, {scene.name}: {title} (best other: {best})", ours, values[best], unit))
    return results
