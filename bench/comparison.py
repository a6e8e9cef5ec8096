"""The daemon's stamps beside the mock's."""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from bench.stage import Stage

Pair = tuple[dict[str, Any], dict[str, Any]]

CONFIG = """
defaults: {{rate: {rate}/s, max_in_flight: 1000}}
slos:
  ttft: {{signal: ttft, threshold: 500ms, objective: 99%}}
  itl: {{signal: itl, threshold: 50ms, objective: 99%}}
workloads:
  fixed:
    prompt_tokens: {{lognormal: {{median: 128, sigma: 0.5, min: 32, max: 512}}}}
    output_tokens: 64
targets:
  - {{name: mock, url: "{{mock}}", probes: [{{workload: fixed}}]}}
"""


def pairs(running: Stage, begin_ns: int, end_ns: int) -> tuple[list[dict[str, Any]], list[Pair]]:
    """(all probes due in the window, the successful ones each with the mock's record). Waits for the truth to be written."""
    return matched(running, running.probes(), begin_ns, end_ns)


def matched(
    running: Stage, recorded: Iterable[dict[str, Any]], begin_ns: int, end_ns: int
) -> tuple[list[dict[str, Any]], list[Pair]]:
    """The same of probes that were recorded elsewhere."""
    probes = [p for p in recorded if begin_ns <= p["stamps_ns"]["intended"] < end_ns]
    wanted = {p["request_id"] for p in probes if p["outcome"] == "ok"}
    deadline = time.monotonic() + 15
    while not wanted <= (truth := running.truth()).keys() and time.monotonic() < deadline:
        time.sleep(0.2)
    return probes, [(p, truth[p["request_id"]]) for p in probes if p["request_id"] in wanted & truth.keys()]


def itl_errors_ms(good: list[Pair]) -> Iterator[tuple[int, float]]:
    """(stamp, |our gap − the mock's gap| in ms) of every gap. One token a chunk, so gap and ITL are the same."""
    for probe, truth in good:
        ours, theirs = probe["stamps_ns"]["content"], truth["writes"]
        for a, b, c, d in zip(ours, ours[1:], theirs, theirs[1:], strict=False):
            yield b, abs((b - a) - (d - c)) / 1e6


def idle() -> None:
    """Turn without work."""


def errors_by_turn(
    running: Stage, turns: Sequence[Callable[[], None]], rounds: int, period_s: float
) -> list[list[float]]:
    """ITL errors in ms during periods that begin with each of `turns`, one turn per period, one after the other."""
    begins: list[int] = []
    for turn in (*turns,) * rounds:
        begins.append(time.monotonic_ns())
        turn()
        time.sleep(max(0.0, period_s - (time.monotonic_ns() - begins[-1]) / 1e9))
    end = time.monotonic_ns()
    time.sleep(1.5)  # for answers that are still arriving
    _, good = pairs(running, begins[0], end)
    errors: list[list[float]] = [[] for _ in turns]
    for at, error in itl_errors_ms(good):
        if begins[0] <= at < end:
            errors[(bisect_right(begins, at) - 1) % len(turns)].append(error)
    return errors
