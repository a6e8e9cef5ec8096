"""Attacks beside a good target: what they change in its figures, in the prober's memory and in its health checks.

Periods under attack follow quiet ones in one run, so that other work on the machine falls on both alike. The p99 of each attacked
period is compared with that of the quiet one before it: a stall of the machine spoils a pair and not the figure, which is the
Hodges-Lehmann estimate of the differences with its 95% interval (`more_ms`). The same of pairs of quiet periods shows what the
machine alone does (`null_ms`). The good target is a mock that records when it wrote each token. Attackers run on time
that nobody else wants (SCHED_IDLE): in earnest they have machines of their own. The prober has its processes' memory summed, each
page that they share counted once (PSS).

    python -m bench.hostile               every attack
    python -m bench.hostile readers       those whose names begin so
"""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from bisect import bisect_right
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

from bench.comparison import itl_errors_ms, matched
from bench.hostile_endpoint import Endpoint
from bench.report import goal, part, percentile, show
from bench.stage import Stage, stage
from prober.statistics.paired_test import hodges_lehmann
from tests.security.attacking_endpoint import ATTACKS as ENDPOINT_ATTACKS

TARGETS = 500  # of the shard that readers attack
RATE = 25  # probes a second of the good target
WARM_S = 12.0
PERIOD_S, ROUNDS = 4.0, 16
ENDPOINT_ROUNDS = 6  # the fewest that have an interval
ORDER = (False, True)  # whether it is attacked
MIB = 1 << 20
MAX_PROBLEM_CHARS = 200
RECOVERY_S = 120.0
HEALTH_EVERY_S, HEALTH_TIMEOUT_S = 0.2, 5.0
SLOW_READERS, VIEWS_PER_S, CONNECTIONS_PER_S = 64, 20.0, 200.0
SLOW_ADDRESS, VIEW_ADDRESS = "127.0.0.2", "127.0.0.3"  # connections come from the address of the health checks
GOOD = """
defaults: {{rate: {rate}/s, max_in_flight: 1000}}
slos:
  ttft: {{signal: ttft, threshold: 500ms, objective: 99%}}
  itl: {{signal: itl, threshold: 50ms, objective: 99%}}
workloads:
  fixed: {{prompt_tokens: 128, output_tokens: 64}}
  hostile: {{{hostile}}}
targets:
  - {{name: good, url: "{{mock}}", probes: [{{workload: fixed}}]}}
"""
# The prober, which also writes each probe of the good target to a file: in its own history 500 targets share their space.
RECORDING = """
import json, os, runpy
from prober.probing.history import TargetHistory
probes, add = open(os.environ["HOSTILE_PROBES"], "w", buffering=1), TargetHistory.add
def record(history, result):
    if history.name == "good":
        timeline = result.timeline
        stamps = {"intended": timeline.intended_ns, "content": list(timeline.content_ns)}
        line = {"request_id": result.request_id, "outcome": result.outcome.value, "stamps_ns": stamps}
        print(json.dumps(line), file=probes)
    add(history, result)
TargetHistory.add = record
runpy.run_module("prober", run_name="__main__", alter_sys=True)
"""
SILENT = '  - {{name: silent-{number}, url: "http://127.0.0.1:9", rate: 0.02/s}}\n'
HOSTILE = """\
  - name: hostile-{period}
    url: "http://127.0.0.1:{port}"
    rate: 4/s
    metrics: {{interval: 1s}}
    probes: [{{workload: hostile}}]
"""
PLAIN = "prompt_tokens: 128, output_tokens: 16"


# --- attacks of readers: each is a coroutine that attacks until it is cancelled


async def slow_readers(port: int, seen: Counter[str]) -> None:
    """As many connections as one address gets, each of which reads a byte of `/metrics` a second."""
    async with asyncio.TaskGroup() as group:
        for _ in range(SLOW_READERS):
            group.create_task(_read_slowly(port, seen))
            await asyncio.sleep(0.01)


async def _read_slowly(port: int, seen: Counter[str]) -> None:
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(SLOW_ADDRESS, 0), limit=1)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            seen["slow: connected"] += 1
            try:
                while await reader.read(1):  # noqa: ASYNC110 - it reads slowly
                    await asyncio.sleep(1.0)
                seen["slow: cut"] += 1
            finally:
                writer.transport.abort()
        await asyncio.sleep(0.2)


async def views(port: int, seen: Counter[str]) -> None:
    """Views of the fleet, most of them with a filter that nobody has used before."""
    number = 0
    async with asyncio.TaskGroup() as group:
        while True:
            number += 1
            path = f"/?q=silent-{number % 97}&page={number % 5}" if number % 4 else "/"
            group.create_task(_get(port, path, VIEW_ADDRESS, "view", seen))
            await asyncio.sleep(1 / VIEWS_PER_S)


async def connections(port: int, seen: Counter[str]) -> None:
    """New connections from the address of the health checks: some ask for a page, some for metrics, some say nothing."""
    number = 0
    async with asyncio.TaskGroup() as group:
        while True:
            number += 1
            path = ("/api/v1/targets", "/metrics", "")[number % 3]
            group.create_task(_get(port, path, "127.0.0.1", "connection", seen))
            await asyncio.sleep(1 / CONNECTIONS_PER_S)


async def _get(port: int, path: str, address: str, kind: str, seen: Counter[str]) -> None:
    try:
        async with asyncio.timeout(4.0):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
            try:
                if path:
                    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                    seen[f"{kind}: {(await reader.readline())[9:12].decode() or 'closed'}"] += 1
                    while await reader.read(1 << 16):
                        pass
                else:
                    await asyncio.sleep(2.0)
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        seen[f"{kind}: refused"] += 1


Attack = Callable[[int, Counter[str]], Awaitable[None]]
READERS: dict[str, tuple[Attack, ...]] = {
    "readers: slow": (slow_readers,),
    "readers: views": (views,),
    "readers: connections": (connections,),
    "readers: all at once": (slow_readers, views, connections),
}


async def attack_in_turns(port: int, begin_ns: int, rounds: int, attacks: tuple[Attack, ...]) -> Counter[str]:
    """Attack in the periods that ORDER says."""
    seen: Counter[str] = Counter()
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # periods end at any moment
    for period, attacked in enumerate(ORDER * rounds):
        await asyncio.sleep(max(0.0, begin_ns / 1e9 + period * PERIOD_S - time.monotonic()))
        if attacked:
            end_s = begin_ns / 1e9 + (period + 1) * PERIOD_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, end_s - time.monotonic())), asyncio.TaskGroup() as group:
                    for attack in attacks:
                        group.create_task(attack(port, seen))  # type: ignore[arg-type]
    return seen


# --- what is watched meanwhile


class Watch(threading.Thread):
    """Samples memory of all processes of the daemon, and asks for its health, until `stop`."""

    def __init__(self, running: Stage) -> None:
        super().__init__(daemon=True)
        self._running, self._ended = running, threading.Event()
        self.memory: list[tuple[int, float]] = []  # (time in ns, MiB)
        self.cpu_s: list[tuple[int, float]] = []  # (time in ns, of all processes)
        self.health: list[tuple[int, float | None]] = []  # (time in ns, seconds; None: not answered with 200)
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def run(self) -> None:
        """Health checks, each on a connection of its own, as a kubelet sends them."""
        self._sampler.start()
        while not self._ended.is_set():
            begin_ns = time.monotonic_ns()
            took_s: float | None = None
            with contextlib.suppress(urllib.error.URLError, OSError):
                with urllib.request.urlopen(f"{self._running.prober}/-/healthy", timeout=HEALTH_TIMEOUT_S) as answer:
                    answer.read()
                took_s = (time.monotonic_ns() - begin_ns) / 1e9
            self.health.append((begin_ns, took_s))
            self._ended.wait(HEALTH_EVERY_S)

    def stop(self) -> None:
        """End both threads."""
        self._ended.set()
        self.join()
        self._sampler.join()

    def _sample(self) -> None:
        while not self._ended.wait(0.1):
            at_ns = time.monotonic_ns()
            self.memory.append((at_ns, self._running.rss_mb() * 1e6 / MIB))
            self.cpu_s.append((at_ns, self._running.cpu_s()))


def _page(running: Stage, path: str) -> bytes:
    """A page, as soon as the prober has recovered."""
    until_s = time.monotonic() + RECOVERY_S
    while True:
        try:
            return running.get(path)
        except (urllib.error.URLError, OSError):
            if time.monotonic() > until_s:
                raise
            time.sleep(1.0)


def _cores(samples: list[tuple[int, float]], kinds: list[int], kind: Callable[[int], int | None]) -> float:
    """Processor seconds a second between samples of these kinds of periods."""
    used_s = wall_s = 0.0
    for (before_ns, before_s), (after_ns, after_s) in pairwise(samples):
        if kind(before_ns) in kinds and kind(after_ns) in kinds:
            used_s += max(0.0, after_s - before_s)  # a process that ended takes its seconds with it
            wall_s += (after_ns - before_ns) / 1e9
    return round(used_s / wall_s, 3) if wall_s else 0.0


def _p99(errors: list[float]) -> float | None:
    """None if no probe succeeded."""
    return round(percentile(errors, 0.99), 3) if errors else None


def _more_ms(quiet: list[list[float]], attacked: list[list[float]]) -> dict[str, float | None] | None:
    """By how much the p99 of errors differs between the periods of each pair; None if no pair has probes that succeeded."""
    differences = [percentile(b, 0.99) - percentile(a, 0.99) for a, b in zip(quiet, attacked, strict=True) if a and b]
    if not differences:
        return None
    effect = hodges_lehmann(differences)
    found = {"estimate": effect.estimate, "lower": effect.lower, "upper": effect.upper}
    return {"pairs": len(differences)} | {name: None if v is None else round(v, 3) for name, v in found.items()}


# --- one run


def measure(config: str, rounds: int, attacking: Callable[[Stage, int], Any]) -> dict[str, Any]:
    """Figures of the good target and of the prober in quiet and attacked periods.

    attacking: attacks in the periods of ORDER, of which the first begins at the time in ns; returns what it saw
    """
    file = tempfile.NamedTemporaryFile("r", prefix="prober-bench-")  # noqa: SIM115, ends with the run
    os.environ["HOSTILE_PROBES"] = file.name
    with stage(config, history=100, program=("-c", RECORDING)) as running:
        time.sleep(WARM_S)
        begin_ns = time.monotonic_ns() + 10**9
        watch = Watch(running)
        watch.start()
        seen = attacking(running, begin_ns)
        end_ns = begin_ns + round(len(ORDER) * rounds * PERIOD_S * 1e9)
        time.sleep(max(0.0, (end_ns - time.monotonic_ns()) / 1e9) + 2.0)
        watch.stop()
        probes, good = matched(running, map(json.loads, file), begin_ns, end_ns)
        standings = json.loads(_page(running, "/api/v1/targets"))["data"]
        slos = {slo["slo"]: slo["state"] for target in standings if target["name"] == "good" for slo in target["slos"]}
        lines = _page(running, "/metrics").decode().splitlines()
        trusted = [line for line in lines if line.startswith('llmslo_trusted{target="good"')]
    begins = [begin_ns + round(period * PERIOD_S * 1e9) for period in range(len(ORDER) * rounds)]

    def period(at_ns: int) -> int | None:
        return bisect_right(begins, at_ns) - 1 if begin_ns <= at_ns < end_ns else None

    def kind(at_ns: int) -> int | None:
        return at % len(ORDER) if (at := period(at_ns)) is not None else None

    errors: list[list[float]] = [[] for _ in begins]
    for at_ns, error in itl_errors_ms(good):
        if (at := period(at_ns)) is not None:
            errors[at].append(error)

    def of(attacked: bool) -> dict[str, Any]:
        kinds = [at for at, each in enumerate(ORDER) if each is attacked]
        mine = [probe for probe in probes if kind(probe["stamps_ns"]["intended"]) in kinds]
        checks = [took for at, took in watch.health if kind(at) in kinds]
        outcomes = Counter(probe["outcome"] for probe in mine)
        return {
            "itl_error_p99_ms": _p99([error for at in kinds for each in errors[at :: len(ORDER)] for error in each]),
            "probes": len(mine),
            "invalid_ratio": round(outcomes["invalid"] / max(1, len(mine)), 4),
            "not_ok": {name: count for name, count in outcomes.items() if name != "ok"},
            "memory_mib": round(max(mib for at, mib in watch.memory if kind(at) in kinds), 1),
            "cores": _cores(watch.cpu_s, kinds, kind),
            "health_checks": len(checks),
            "health_failed": checks.count(None),
            "health_s": round(max((took for took in checks if took is not None), default=0.0), 3),
        }

    quiet, attacked = of(attacked=False), of(attacked=True)
    return {
        "quiet": quiet,
        "attacked": attacked,
        "more_ms": _more_ms(errors[0::2], errors[1::2]),
        "null_ms": _more_ms(errors[0::4], errors[2::4]),
        "slos": slos,
        "trusted": trusted[0].split()[1] if trusted else None,
        "attack": seen,
    }


def readers(name: str) -> dict[str, Any]:
    """An attack of readers on a shard of TARGETS."""
    config = GOOD.format(rate=RATE, hostile=PLAIN) + "".join(
        SILENT.format(number=number) for number in range(TARGETS - 1)
    )

    def attacking(running: Stage, begin_ns: int) -> Any:
        port = running.prober.rpartition(":")[2]
        command = [sys.executable, "-m", "bench.hostile", "--attack", name, port, str(begin_ns)]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)

    return measure(config, ROUNDS, attacking)


def endpoint(name: str) -> dict[str, Any]:
    """An attack of a target's server, which answers well in quiet periods. Each period has a target of its own, so that the prober
    finds out in each of them what it probes.
    """
    with Endpoint(name) as hostile:
        good = GOOD.format(rate=RATE, hostile=hostile.workload or PLAIN)

        def attacking(running: Stage, begin_ns: int) -> Any:
            begun = good.replace("{mock}", running.mock)
            for period, attacked in enumerate(ORDER * ENDPOINT_ROUNDS):
                time.sleep(max(0.0, begin_ns / 1e9 + period * PERIOD_S - time.monotonic()))
                hostile.attack(attacked)
                target = HOSTILE.format(period=period, port=hostile.port)
                (running.folder / "prober.yaml").write_text(begun + target)
                request = urllib.request.Request(f"{running.prober}/-/reload", method="POST")
                with (
                    contextlib.suppress(urllib.error.URLError, OSError),
                    urllib.request.urlopen(request, timeout=PERIOD_S),
                ):
                    pass
            time.sleep(PERIOD_S)
            return hostile.stop()

        return measure(good, ENDPOINT_ROUNDS, attacking)


def goals(name: str, found: dict[str, Any]) -> list[dict[str, Any]]:
    """Goals of one attack."""
    lives = goal(f"{name}: the prober answered after it and obeyed SIGTERM, 0 if so", float("failed" in found), 0, "")
    if "failed" in found:
        return [lives]
    attacked = found["attacked"]
    failed = attacked["health_failed"]
    more_invalid = 100 * (attacked["invalid_ratio"] - found["quiet"]["invalid_ratio"])
    itl = f"{name}: ITL error p99 of the good target, attacked minus not, at most (95%)"
    more_ms = (found["more_ms"] or {}).get("upper")
    unknown = {"name": itl, "value": None, "goal": 0.5, "unit": "ms", "met": False}
    return [
        lives,
        goal(itl, more_ms, 0.5, "ms") if more_ms is not None else unknown,
        goal(f"{name}: invalid probes of the good target, attacked minus not", more_invalid, 1.0, "%"),
        goal(f"{name}: memory of the prober, highest", attacked["memory_mib"], 256, "MiB"),
        goal(f"{name}: health checks that failed", failed, 0, "checks"),
        goal(f"{name}: slowest health check", attacked["health_s"], 1.0, "s"),
        goal(
            f"{name}: SLOs of the good target that are missed", list(found["slos"].values()).count("missed"), 0, "SLOs"
        ),
    ]


def main() -> None:
    """Measure and print; with --attack, attack."""
    if sys.argv[1:2] == ["--attack"]:
        name, port, begin_ns = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        print(json.dumps(asyncio.run(attack_in_turns(port, begin_ns, ROUNDS, READERS[name]))))
        return
    wanted = tuple(sys.argv[1:]) or ("",)
    found: dict[str, dict[str, Any]] = {}
    for name, run in [*((name, readers) for name in READERS), *((name, endpoint) for name in ENDPOINT_ATTACKS)]:
        if name.startswith(wanted):
            try:
                found[name] = run(name)
            except (OSError, subprocess.SubprocessError) as problem:  # it answers no more, or does not end
                found[name] = {"failed": f"{type(problem).__name__}: {problem}"[:MAX_PROBLEM_CHARS]}
            part(name, found[name])
    show("hostile", [each for name in found for each in goals(name, found[name])], attacks=found)


if __name__ == "__main__":
    main()
