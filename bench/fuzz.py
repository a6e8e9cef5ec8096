"""Ten million hostile event streams (`tests.fuzz.streams`) through the parsers of answers.

A stream that fails is written to `--failures`. `--guided` lets atheris (libFuzzer) search by coverage instead, where it is installed.
"""

import argparse
import hashlib
import importlib
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from bench.report import goal, show
from tests.fuzz.streams import BLOCK, PROMISES, blocks, cuts, hold, written


def _work(task: tuple[int, range, Path]) -> dict[str, Any]:
    return blocks(*task)


def fuzz(streams: int, seed: int, processes: int, failures: Path) -> dict[str, Any]:
    """All blocks, shared out."""
    count = -(-streams // BLOCK)
    tasks = [(seed, range(process, count, processes), failures) for process in range(processes)]
    began = time.monotonic()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        results = pool.map(_work, tasks, chunksize=1)
    failed: dict[str, str] = {}
    for result in results:
        failed.update(result["failures"])
    outcomes: Counter[str] = sum((result["outcomes"] for result in results), Counter())
    return {
        "streams": sum(result["streams"] for result in results),
        "bytes": sum(result["bytes"] for result in results),
        "longest_bytes": max(result["longest"] for result in results),
        "seconds": round(time.monotonic() - began, 1),
        "grown_mb": round(max(result["grown_mb"] for result in results), 1),
        "outcomes": dict(sorted(outcomes.items())),
        "failures": failed,
    }


def guided(seconds: int, folder: Path) -> None:
    """Search by coverage, from the streams that engines send; libFuzzer ends the process."""
    from prober.measure import chat, outcome, payload, quality, recording, sse, timeline

    atheris: Any = importlib.import_module("atheris")

    for module in (sse, payload, chat, recording, timeline, outcome, quality):
        for name, value in vars(module).items():
            _instrument(atheris.instrument_func, module, name, value)
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for event in written():
        body = b"\x03\x41data: " + event + b"\n\ndata: [DONE]\n\n"
        (corpus / hashlib.sha256(body).hexdigest()[:16]).write_bytes(body)

    def one(data: bytes) -> None:
        rng = Random(data[:2])
        hold(data[2:], cuts(rng, len(data) - 2) if len(data) > 2 else (), PROMISES[rng.randrange(len(PROMISES))])

    flags = [
        f"-max_total_time={seconds}",
        "-max_len=4096",
        "-timeout=20",
        f"-artifact_prefix={folder}/",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *flags, str(corpus)], one)
    atheris.Fuzz()


def _instrument(instrument: Callable[[Any], Any], module: Any, name: str, value: Any) -> None:
    """Functions and methods of this module's own."""
    if getattr(value, "__module__", None) != module.__name__:
        return
    if isinstance(value, type):
        for inner, method in list(vars(value).items()):
            if callable(method) and hasattr(method, "__code__") and not inner.startswith("__"):
                setattr(value, inner, instrument(method))
    elif hasattr(value, "__code__"):
        setattr(module, name, instrument(value))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--failures", type=Path, default=Path("fuzz-failures"))
    parser.add_argument("--guided", type=int, default=0, metavar="SECONDS")
    asked = parser.parse_args()
    if asked.guided:
        guided(asked.guided, asked.failures)
        return
    found = fuzz(asked.streams, asked.seed, asked.processes, asked.failures)
    failed = found["outcomes"].pop("failed", 0)
    goals = [
        goal("streams that raised, hung, kept too much or depended on how they were cut", failed, 0, "streams"),
        goal("streams not tried", max(0, asked.streams - found["streams"]), 0, "streams"),
        goal("growth of a process's peak memory after its first 20,000 streams", found["grown_mb"], 64, "MB"),
    ]
    show("fuzz", goals, seed=asked.seed, **found)
    if failed:
        sys.exit(json.dumps(found["failures"], indent=2))


if __name__ == "__main__":
    main()
