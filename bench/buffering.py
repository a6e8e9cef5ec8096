"""How often does the rule of buffering err? Real streams of the mock, through a relay that holds them back, and direct.

Held back: five policies of `tests.relay` at three speeds of the engine. Streamed: seven speeds, at 5 and at 50 requests a second, on
a quiet machine and beside two busy processes per core, which make the scheduler stop prober and mock for milliseconds.

Two counts: answers that `is_held_back` judges wrongly, and verdicts of `Buffering` after an answer, from the fifth judged one on,
that are wrong. Answers that cannot be judged are counted apart. Load stops the mock too: what it then writes together counts as
judged wrongly. For FLUSH_GAP_NS it also reports the gaps inside of answers that were released event by event, and those of streams.
"""

import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

from bench.report import goal, part, percentile, show
from prober.config.load import load
from prober.config.target import TargetSpec
from prober.measure.buffering import MIN_ANSWERS, Buffering, is_held_back
from prober.measure.engines import DIALECTS
from prober.measure.outcome import ANSWERED
from prober.measure.timeline import FLUSH_GAP_NS, Timeline
from prober.net.clock import Clock
from prober.probing.probe import run_probe
from prober.probing.target import Target
from prober.workload.workloads import RequestGenerator
from tests.processes import Mock

POLICIES = ("all", "all-by-event", "events:8", "bytes:4096", "time:0.1")
HELD_ITLS = ("2ms", "10ms", "20ms")
STREAMED_ITLS = ("0.3ms", "0.5ms", "1ms", "2ms", "5ms", "10ms", "20ms")
ANSWERS = {5: 40, 50: 300}  # by requests per second
BUSY_PER_CORE = 2
LEAD_NS = 200_000_000


def spec(port: int) -> TargetSpec:
    """The target; nothing is shed, and nothing is invalid for being late."""
    text = f"targets: [{{name: t, url: 'http://127.0.0.1:{port}', max_in_flight: 1000}}]"
    return load(text, source="bench", engines=DIALECTS, environment={}, read=lambda path: path).targets[0]


async def answers(port: int, per_s: int, count: int) -> list[Timeline]:
    """Timelines of the answers, in the order of their due times."""
    clock = Clock()
    target = Target(spec(port), clock)
    await target.identify()
    requests = RequestGenerator(target.spec.probes[0].workload, Random(1))
    begin_ns = clock.now_ns() + 2 * LEAD_NS
    probes = []
    for number in range(count):
        due_ns = begin_ns + round(number / per_s * 1e9)
        await clock.sleep_until(due_ns - LEAD_NS)
        probes.append(asyncio.create_task(run_probe(target, requests, due_ns)))
    results = await asyncio.gather(*probes)
    clock.close()
    return [result.timeline for result in results if result is not None and result.outcome in ANSWERED]


@contextlib.contextmanager
def relay(port: int, policy: str) -> Iterator[int]:
    """The port of a relay, a process of its own."""
    command = [sys.executable, "-m", "tests.relay", str(port), policy]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.kill()


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that use all the processor time they get."""
    spinning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def judged(timelines: Sequence[Timeline], *, is_held: bool) -> dict[str, Any]:
    """Numbers of answers and verdicts, and of the wrong ones."""
    held, verdicts, buffering = [], [], Buffering()
    for timeline in timelines:
        held.append(is_held_back(timeline))
        buffering = buffering.after(timeline)
        if len(buffering.held_back) >= MIN_ANSWERS:
            verdicts.append(buffering.is_buffered)
    known = [answer for answer in held if answer is not None]
    wrong_verdicts = sum((verdict is not True) if is_held else verdict is True for verdict in verdicts)
    return {
        "answers": len(known),
        "unjudged": len(held) - len(known),
        "wrong_answers": sum(answer is not is_held for answer in known),
        "verdicts": len(verdicts),
        "wrong_verdicts": wrong_verdicts,
        "zero_itls": sum(itl_s < FLUSH_GAP_NS / 1e9 / 50 for timeline in timelines for itl_s in timeline.itls_s),
    }


def gaps_ms(timelines: Sequence[Timeline]) -> dict[str, float]:
    """Quantiles of the gaps between reads."""
    gaps = [gap_s * 1e3 for timeline in timelines for gap_s in timeline.chunk_gaps_s if gap_s > 0]
    return {f"p{q * 100:g}": round(percentile(gaps, q), 4) for q in (0.1, 0.5, 0.9, 0.99)} if gaps else {}


def held_back(folder: Path) -> list[dict[str, Any]]:
    """Runs through the relay."""
    runs = []
    for itl in HELD_ITLS:
        with Mock(folder / "mock", "--itl", itl) as mock:
            for policy in POLICIES:
                with relay(mock.port, policy) as port:
                    timelines = asyncio.run(answers(port, 10, 60))
                run = {"policy": policy, "itl": itl, **judged(timelines, is_held=True)}
                tpots = [tpot_s * 1e3 for timeline in timelines if (tpot_s := timeline.tpot_s) is not None]
                runs.append(
                    run
                    | {
                        "gaps_ms": gaps_ms(timelines),
                        "tpot_p50_ms": round(percentile(tpots, 0.5), 3) if tpots else None,
                    }
                )
    return runs


def streamed(folder: Path, *, load: bool) -> list[dict[str, Any]]:
    """Runs without a relay."""
    runs = []
    for itl in STREAMED_ITLS:
        with Mock(folder / "mock", "--itl", itl) as mock:
            for per_s, count in ANSWERS.items():
                with busy(BUSY_PER_CORE * 2 if load else 0):
                    timelines = asyncio.run(answers(mock.port, per_s, count))
                run = {"itl": itl, "per_s": per_s, "load": load, **judged(timelines, is_held=False)}
                runs.append(run | {"gaps_ms": gaps_ms(timelines)})
    return runs


def share_percent(runs: Sequence[dict[str, Any]], kind: str) -> float:
    """Wrong answers or verdicts, in percent of all."""
    wrong, total = (sum(int(run[name]) for run in runs) for name in (f"wrong_{kind}", kind))
    return 100 * wrong / max(1, total)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        held = part("held back", held_back(Path(folder)))
        quiet, loaded = (part(f"streamed, {load=}", streamed(Path(folder), load=load)) for load in (False, True))
    show(
        "buffering",
        [
            goal("held-back answers that are not recognised", share_percent(held, "answers"), 5, "%"),
            goal(
                "verdicts on a target behind the relay that are not `buffered`", share_percent(held, "verdicts"), 0, "%"
            ),
            goal("ITLs near 0 behind the relay", sum(run["zero_itls"] for run in held), 0, "ITLs"),
            goal("streamed answers judged held back, quiet", share_percent(quiet, "answers"), 0.1, "%"),
            goal("streamed answers judged held back, under load", share_percent(loaded, "answers"), 5, "%"),
            goal("verdicts `buffered` on a target that streams, quiet", share_percent(quiet, "verdicts"), 0, "%"),
            goal("verdicts `buffered` on a target that streams, under load", share_percent(loaded, "verdicts"), 0, "%"),
        ],
        held_back=held,
        streamed=[*quiet, *loaded],
    )


if __name__ == "__main__":
    main()
