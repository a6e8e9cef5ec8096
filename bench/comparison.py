"""The daemon's stamps beside the mock's."""

import time
from collections.abc import Iterator
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
