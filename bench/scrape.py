"""Does being scraped disturb the stamps? ITL error in seconds with a scrape minus those without, in one run.

One target is probed at 100 rps; silent ones beside it make the page about 30,000 lines long.
"""

import threading
import time
from typing import Any

from bench.comparison import CONFIG, itl_errors_ms, pairs
from bench.report import goal, percentile, show
from bench.stage import Stage, stage

PERIOD_S = 20
PERIODS = 4


def measure(silent: int) -> dict[str, Any]:
    """ITL error p99 in ms with and without a scrape a second; periods alternate."""
    others = "".join(f'  - {{name: silent-{i}, url: "http://127.0.0.1:9", rate: 0.2/s}}\n' for i in range(silent))
    config = CONFIG.format(rate=100) + others
    with stage(config, history=100 * PERIOD_S * PERIODS * 2) as running:
        time.sleep(3)
        spans: list[tuple[bool, int, int]] = []
        lines = 0
        for period in range(PERIODS):
            scraped = period % 2 == 1
            begin = time.monotonic_ns()
            stop = threading.Event()
            reader = threading.Thread(target=_scrape, args=(running, stop))
            if scraped:
                reader.start()
            time.sleep(PERIOD_S)
            stop.set()
            if scraped:
                reader.join()
            spans.append((scraped, begin, time.monotonic_ns()))
        lines = running.get("/metrics").count(b"\n")
        time.sleep(1.5)
        _, good = pairs(running, spans[0][1], spans[-1][2])
    split: dict[bool, list[float]] = {True: [], False: []}
    for at, error in itl_errors_ms(good):
        for scraped, begin, end in spans:
            if begin <= at < end:
                split[scraped].append(error)
    with_, without = (percentile(split[scraped], 0.99) for scraped in (True, False))
    return {
        "lines": lines,
        "with_ms": with_,
        "without_ms": without,
        "samples": {str(k): len(v) for k, v in split.items()},
    }


def _scrape(running: Stage, stop: threading.Event) -> None:
    while not stop.wait(1.0):
        running.get("/metrics")


def main() -> None:
    """Measure and print."""
    small, large = measure(0), measure(116)
    show(
        "scrape",
        [
            goal("ITL error p99, scraped minus not, small page", small["with_ms"] - small["without_ms"], 0.5, "ms"),
            goal("ITL error p99, scraped minus not, large page", large["with_ms"] - large["without_ms"], 2.0, "ms"),
        ],
        runs=[small, large],
    )


if __name__ == "__main__":
    main()
