"""`prober watch` draws in the process that probes: what a frame costs, and how exact the stamps are beside it.

A prober probes the mock at RATE_PER_S for WATCHED_S in a pseudo-terminal. The error of ITL is beside the mock's own record. Two figures
without a network, in processor time of their thread: a frame of MANY targets at 120 × 40, and a snapshot of them.
"""

import asyncio
import io
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.comparison import Pair, itl_errors_ms
from bench.report import goal, part, percentile, show
from prober.cli.console import Terminal as Console
from prober.cli.watch import Screen
from prober.web.targets import Snapshot
from tests.processes import Mock, free_port, get, until
from tests.pseudo_terminal import HOME, Terminal
from tests.web import scenes
from tests.web.test_snapshots import Rig

RATE_PER_S, WATCHED_S, INTERVAL = 15, 60.0, "500ms"
SETTLE_S = 5.0
MANY, FRAMES, SNAPSHOTS = 50, 200, 10
CONFIG = """
defaults: {{rate: {rate}/s, max_in_flight: 1000}}
workloads: {{fixed: {{prompt_tokens: 64, output_tokens: 64}}}}
targets: [{{name: mock, url: "{mock}", probes: [{{workload: fixed}}]}}]
"""


def watched_figures(folder: Path) -> dict[str, float]:
    """Of the probes while the screen is drawn; times in ms."""
    truth, port = folder / "truth.jsonl", free_port()
    config = folder / "prober.yaml"
    address = f"127.0.0.1:{port}"
    with Mock(folder / "mock.log", "--truth", truth, "--seed", "1") as mock:
        config.write_text(CONFIG.format(rate=RATE_PER_S, mock=mock.url))
        words = ("watch", "--config.file", str(config), "--interval", INTERVAL, "--web.listen-address", address)
        with Terminal(120, 40, sys.executable, "-m", "prober", *words) as terminal:
            until(lambda: get(f"http://{address}/-/ready"), "the prober")
            time.sleep(SETTLE_S)
            probes, drawn = dict[str, dict[str, Any]](), terminal.written.count(HOME.encode())
            begin_ns = time.monotonic_ns()
            while time.monotonic_ns() < begin_ns + WATCHED_S * 1e9:
                time.sleep(3)
                listed = json.loads(get(f"http://{address}/api/v1/probes?limit=1000"))["data"]
                probes.update((probe["request_id"], probe) for probe in listed)
            frames = terminal.written.count(HOME.encode()) - drawn
            terminal.type(b"\x03")
            terminal.process.wait(30)
        records = {record["id"]: record for record in map(json.loads, truth.read_text().splitlines())}
    good: list[Pair] = [(p, records[key]) for key, p in probes.items() if p["outcome"] == "ok" and key in records]
    errors = [error for _, error in itl_errors_ms(good)]
    return {
        "probes": len(probes),
        "invalid": sum(p["outcome"] == "invalid" for p in probes.values()),
        "frames_per_s": round(frames / WATCHED_S, 2),
        **{f"itl_error_p{q * 100:g}_ms": round(percentile(errors, q), 3) for q in (0.5, 0.9, 0.99)},
    }


def many() -> list[Any]:
    """Views of many targets, each with its probes."""
    return [scenes.replace(scenes.target(f"t{n}", seed=n), key=f"t{n}") for n in range(MANY)]


async def snapshots_ms() -> tuple[Snapshot, list[float]]:
    """A snapshot of many targets, and how long each took."""
    rig, times = Rig(*many()), list[float]()
    snapshot = await rig.snapshots.take()  # the first has the probes of all time, the others what is new
    for _ in range(SNAPSHOTS):
        begin_ns = time.thread_time_ns()
        snapshot = await rig.snapshots.take()
        times.append((time.thread_time_ns() - begin_ns) / 1e6)
    return snapshot, times


def frames_ms(snapshot: Snapshot) -> list[float]:
    """Times of whole frames: compose and write it."""
    screen, out, times = Screen(), io.StringIO(), list[float]()
    console = Console(file=out, force_terminal=True, width=120, height=40)
    for _ in range(FRAMES):
        begin_ns = time.thread_time_ns()
        screen.snapshot = snapshot
        console.print(screen)
        times.append((time.thread_time_ns() - begin_ns) / 1e6)
        out.seek(0)
        out.truncate()
    return times


def main() -> None:
    """Measure and print."""
    snapshot, snapshots = asyncio.run(snapshots_ms())
    frames = part("frames", frames_ms(snapshot))
    with tempfile.TemporaryDirectory(prefix="prober-bench-") as folder:
        watched = watched_figures(Path(folder))
    goals = [
        goal("ITL error p99", watched["itl_error_p99_ms"], 0.1, "ms"),
        goal("invalid probes", watched["invalid"], 0, "probes"),
        goal(f"frame of {MANY} targets p99", percentile(frames, 0.99), 50, "ms"),
        goal(f"snapshot of {MANY} targets p99", percentile(snapshots, 0.99), 100, "ms"),
    ]
    show("watch", goals, **watched, frame_median_ms=round(percentile(frames, 0.5), 2))


if __name__ == "__main__":
    main()
