"""Cost of running: memory and processor time with one target at 0.2 rps, and the time from start to first request."""

import time

from bench.report import goal, part, percentile, show
from bench.stage import stage

CONFIG = 'targets: [{name: mock, url: "{mock}"}]\n'
STEADY_S = 120
STARTS = 5


def main() -> None:
    """Measure and print."""
    starts: list[float] = []
    for _ in range(STARTS):
        with stage(CONFIG) as running:
            end = time.monotonic() + 15
            while not (received := [t["received_ns"] for t in running.truth().values()]) and time.monotonic() < end:
                time.sleep(0.05)
            starts.append(part("start", (min(received) - running.started_ns) / 1e9))
    with stage(CONFIG) as running:
        time.sleep(10)
        cpu = running.cpu_s()
        time.sleep(STEADY_S)
        share = (running.cpu_s() - cpu) / STEADY_S * 100
        rss = running.rss_mb()
    show(
        "footprint",
        [
            goal("resident memory, one target at 0.2 rps", rss, 80, "MB"),
            goal("processor share, one target at 0.2 rps", share, 0.5, "% of a core"),
            goal("process start to first warm-up request received", percentile(starts, 0.5), 1.5, "s"),
        ],
        start_s=[round(start, 3) for start in starts],
        steady_s=STEADY_S,
    )


main()
