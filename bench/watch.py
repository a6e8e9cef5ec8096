"""Does drawing disturb measuring? `prober watch` in a pseudo-terminal, with blocks in which its screen is drawn and others.

One prober probes the mock at RATE_PER_S all the time. In every second block the process that draws is stopped (SIGSTOP), which is a
terminal that takes nothing any more: after some ten snapshots the pipe is full, and none is taken until the block has ended. Compared
are the probes due in both kinds of blocks: send lag, the share of `invalid`, and the error of ITL beside the mock's own record. Noise
is the difference between the stopped blocks with odd and with even numbers.

Two figures without a network, in processor time of their thread: a frame of MANY targets at 120 × 40, and the steps between which
taking a snapshot of them releases the event loop.
"""

import argparse
import asyncio
import io
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.comparison import Pair, itl_errors_ms
from bench.report import goal, part, percentile, show
from prober.cli.console import Terminal as Console
from prober.cli.watch_screen import Frame
from prober.cli.watch_words import Watched
from prober.web.targets import Snapshot
from tests.processes import Mock, free_port, get, until
from tests.pseudo_terminal import HOME, Terminal
from tests.web import scenes
from tests.web.test_snapshots import Rig

RATE_PER_S, BLOCK_S, INTERVAL = 15, 12.0, "500ms"
SETTLE_S = 5.0
MANY, FRAMES, SNAPSHOTS = 50, 200, 10
CONFIG = """
defaults: {{rate: {rate}/s, max_in_flight: 1000}}
workloads: {{fixed: {{prompt_tokens: 64, output_tokens: 64}}}}
targets: [{{name: mock, url: "{mock}", probes: [{{workload: fixed}}]}}]
"""


def blocks(folder: Path, rounds: int) -> tuple[list[list[dict[str, Any]]], dict[str, Any], float]:
    """Probes that were due in each block, the mock's record by request, and frames a second while drawn."""
    truth, port = folder / "truth.jsonl", free_port()
    config = folder / "prober.yaml"
    address = f"127.0.0.1:{port}"
    with Mock(folder / "mock.log", "--truth", truth, "--seed", "1") as mock:
        config.write_text(CONFIG.format(rate=RATE_PER_S, mock=mock.url))
        words = ("watch", "--config.file", str(config), "--interval", INTERVAL, "--web.listen-address", address)
        with Terminal(120, 40, sys.executable, "-m", "prober", *words) as terminal:
            until(lambda: get(f"http://{address}/-/ready"), "the prober")
            time.sleep(SETTLE_S)
            collected, spans, frames = dict[str, dict[str, Any]](), list[tuple[int, int]](), 0
            for number in range(2 * rounds):
                terminal.process.send_signal(signal.SIGSTOP if number % 2 else signal.SIGCONT)
                begin_ns, drawn = time.monotonic_ns(), terminal.written.count(HOME.encode())
                while time.monotonic_ns() < begin_ns + BLOCK_S * 1e9:
                    time.sleep(3)
                    listed = json.loads(get(f"http://{address}/api/v1/probes?limit=1000"))["data"]
                    collected.update((probe["request_id"], probe) for probe in listed)
                spans.append((begin_ns, time.monotonic_ns()))
                frames += terminal.written.count(HOME.encode()) - drawn
            terminal.process.send_signal(signal.SIGCONT)
            terminal.type(b"\x03")
            terminal.process.wait(30)
        records = {record["id"]: record for record in map(json.loads, truth.read_text().splitlines())}
    by_block = [
        [p for p in collected.values() if begin_ns <= p["stamps_ns"]["intended"] < end_ns] for begin_ns, end_ns in spans
    ]
    return by_block, records, frames / (rounds * BLOCK_S)


def figures(probes: Sequence[dict[str, Any]], records: dict[str, Any]) -> dict[str, float]:
    """Of one kind of blocks; times in ms."""
    good: list[Pair] = [
        (p, records[p["request_id"]]) for p in probes if p["outcome"] == "ok" and p["request_id"] in records
    ]
    lags = [p["send_lag_s"] * 1e3 for p in probes if p["send_lag_s"] is not None]
    errors = [error for _, error in itl_errors_ms(good)]
    return {
        "probes": len(probes),
        "invalid_ratio": sum(p["outcome"] == "invalid" for p in probes) / len(probes),
        **{f"send_lag_p{q * 100:g}_ms": round(percentile(lags, q), 3) for q in (0.5, 0.9, 0.99)},
        **{f"itl_error_p{q * 100:g}_ms": round(percentile(errors, q), 3) for q in (0.5, 0.9, 0.99)},
    }


def many() -> list[Any]:
    """Views of many targets, each with its probes."""
    return [scenes.replace(scenes.target(f"t{n}", seed=n), key=f"t{n}") for n in range(MANY)]


async def snapshot_steps_ms() -> tuple[Snapshot, list[float]]:
    """A snapshot of many targets, and how long each step of it held the event loop."""
    rig = Rig(*many())
    snapshot = await rig.snapshots.take()  # the first has the probes of all time, the others what is new
    steps: list[float] = []
    for _ in range(SNAPSHOTS):
        work, is_done = rig.snapshots.take(), False
        while not is_done:
            begin_ns = time.thread_time_ns()
            try:
                work.send(None)
            except StopIteration as end:
                snapshot, is_done = end.value, True
            steps.append((time.thread_time_ns() - begin_ns) / 1e6)
    return snapshot, steps


def frames_ms(snapshot: Snapshot) -> list[float]:
    """Times of whole frames: compose and write it."""
    watched, out, times = Watched(), io.StringIO(), list[float]()
    console = Console(file=out, force_terminal=True, width=120, height=40)
    for _ in range(FRAMES):
        begin_ns = time.thread_time_ns()
        watched.add(snapshot)
        console.print(Frame(watched))
        times.append((time.thread_time_ns() - begin_ns) / 1e6)
        out.seek(0)
        out.truncate()
    return times


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8, help="pairs of blocks, at least 2")
    rounds = parser.parse_args().rounds
    snapshot, steps = asyncio.run(snapshot_steps_ms())
    times = frames_ms(snapshot)
    with tempfile.TemporaryDirectory(prefix="prober-bench-") as folder:
        part("frames", {"frames_ms": times, "steps_ms": steps})
        by_block, records, frames_per_s = blocks(Path(folder), rounds)

    def of(first: int, step: int) -> dict[str, float]:
        return figures([probe for block in by_block[first::step] for probe in block], records)

    drawn, stopped = of(0, 2), of(1, 2)
    halves = of(1, 4), of(3, 4)  # of the stopped blocks: their difference is noise

    def more(name: str) -> float:
        return drawn[name] - stopped[name]

    goals = [
        goal("send lag p99, drawn - stopped", more("send_lag_p99_ms"), 0.5, "ms"),
        goal("ITL error p99, drawn - stopped", more("itl_error_p99_ms"), 0.5, "ms"),
        goal("invalid, drawn - stopped", more("invalid_ratio"), 0.01, "ratio"),
        goal("frames a second", frames_per_s, 2, "1/s"),
        goal(f"frame of {MANY} targets p99", percentile(times, 0.99), 50, "ms"),
        goal(f"step of a snapshot of {MANY} targets p99", percentile(steps, 0.99), 1, "ms"),
    ]
    noise = {name: round(abs(halves[0][name] - halves[1][name]), 4) for name in drawn if name != "probes"}
    raw = {"drawn": drawn, "stopped": stopped, "noise": noise, "frame_median_ms": round(percentile(times, 0.5), 2)}
    show("watch", goals, **raw, step_max_ms=round(max(steps), 3), rounds=rounds)


if __name__ == "__main__":
    main()
