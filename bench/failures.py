"""Memory that failures take: the growth of a daemon whose targets answer every probe with an error of 64 kB, each with other words."""

import time

from bench.hostile_endpoint import Endpoint
from bench.report import goal, show
from bench.stage import Stage, stage

ATTACK = "endpoint: errors of 64 kB"
TARGET = '  - {{name: failing-{number}, url: "http://127.0.0.1:{port}", rate: {rate}/s}}\n'
FIRST_FAILURES = 20  # with which the prober loads what a failure needs
MAX_S = 300.0


def _failures(running: Stage) -> float:
    lines = running.get("/metrics").decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("llmslo_probe_failures_total{"))


def _memory_mib(running: Stage, failures: int) -> float:
    """PSS of the daemon's processes after so many failures."""
    end_s = time.monotonic() + MAX_S
    while _failures(running) < failures:
        if time.monotonic() > end_s:
            raise TimeoutError(f"{_failures(running):.0f} of {failures} failures in {MAX_S:.0f} s")
        time.sleep(0.25)
    return running.rss_mb() * 1e6 / (1 << 20)


def course_mib(targets: int, rate: int, *failures: int) -> list[float]:
    """Memory in MiB after each number of failures of so many targets, with `rate` probes a second each."""
    with Endpoint(ATTACK) as failing:
        failing.attack(True)
        rows = "".join(TARGET.format(number=number, port=failing.port, rate=rate) for number in range(targets))
        with stage(f"defaults: {{warmup: 0, max_in_flight: 1000}}\ntargets:\n{rows}", history=100) as running:
            return [round(_memory_mib(running, count), 1) for count in failures]


def main() -> None:
    """Measure and print."""
    one = course_mib(1, 20, FIRST_FAILURES, 500, 1_000)
    ten = course_mib(10, 10, 600, 3_000, 6_000)  # those of one minute, five and ten at 1/s
    show(
        "failures",
        [
            goal("growth in 1,000 failures of one target at 20/s", one[-1] - one[0], 5, "MiB"),
            goal("memory after them", one[-1], 128, "MiB"),
            goal("growth of ten targets that fail at 1/s, after the first of ten minutes", ten[-1] - ten[0], 10, "MiB"),
        ],
        one_target_mib=one,
        ten_targets_mib=ten,
    )


if __name__ == "__main__":
    main()
