"""The daemon's stamps beside the mock's."""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from bench.stage import Stage

T = TypeVar("T")
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
    probes = [p for p in running.probes() if begin_ns <= p["stamps_ns"]["intended"] < end_ns]
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


def itl_errors_in_turns(
    running: Stage, order: Sequence[T], rounds: int, period_s: float, act: Callable[[T], object]
) -> list[list[float]]:
    """ITL errors in ms by place in `order`, while `act` is called with the items in turn, one each `period_s`."""
    begins: list[int] = []
    for item in (*order,) * rounds:
        begins.append(time.monotonic_ns())
        act(item)
        time.sleep(max(0.0, period_s - (time.monotonic_ns() - begins[-1]) / 1e9))
    end = time.monotonic_ns()
    time.sleep(1.5)
    _, good = pairs(running, begins[0], end)
    errors: list[list[float]] = [[] for _ in order]
    for at, error in itl_errors_ms(good):
        if begins[0] <= at < end:
            errors[(bisect_right(begins, at) - 1) % len(order)].append(error)
    return errors
