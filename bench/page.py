"""Cost of the prober's own page: bytes and load time in a real browser, and its effect on measured ITLs.

Loads: a daemon with 100 targets on one mock, each probed every five seconds. ITLs: the same with one target at RATE, whose ITLs are
compared with the mock's. Seconds that begin with a gzipped fetch of the page and /metrics alternate with seconds without, so that
other work on a shared machine affects both; the difference between two kinds of seconds without fetch is the noise (`null_ms`).

Also the longest slice of processor time: the event loop runs between slices.
"""

import shutil
import time
import urllib.request
from collections.abc import Callable
from random import Random
from typing import Any

from playwright.sync_api import sync_playwright

from bench.comparison import CONFIG, errors_by_turn, idle
from bench.report import goal, part, percentile, require, show
from bench.stage import Stage, stage
from prober.probing.history import SAMPLES, Samples
from prober.web.page import layout
from tests.web.scenes import hundred, page_of

TARGETS = 100
RATE = 50
PERIOD_S = 1.0
ROUNDS = 8
WARM_S = 20.0  # for probes of every target
LOADS = 7
KB = 1_000
TIMES = """(() => {
  const all = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
  const sum = (name) => all.reduce((total, each) => total + each[name], 0);
  return [all[0].loadEventEnd, sum("transferSize"), sum("decodedBodySize")];
})()"""


def config(rate: float, each: float) -> str:
    """Configuration with one target at `rate` per second, and the others, without their engine's page, at `each`."""
    others = "".join(
        f'  - {{name: team-{i % 7}/model-{i:02d}, url: "{{mock}}", rate: {each}/s, metrics: {{url: none}}}}\n'
        for i in range(1, TARGETS)
    )
    return CONFIG.format(rate=rate).replace("targets:\n", "targets:\n" + others)


def measure() -> dict[str, Any]:
    """p99 of ITL errors in ms, with and without reading the page."""
    with stage(config(RATE, 0.05), history=round(RATE * PERIOD_S * ROUNDS * 4 * 2)) as running:
        time.sleep(WARM_S)
        fetch(running, "/")  # the first fetch costs most

        def read() -> None:
            fetch(running, "/")
            fetch(running, "/metrics")

        errors = errors_by_turn(running, (idle, read, idle, read), ROUNDS, PERIOD_S)
    quiet, once, again, twice = errors
    p99 = {"not_read": percentile(quiet + again, 0.99), "read": percentile(once + twice, 0.99)}
    return {
        "gaps": sum(map(len, errors)),
        "itl_error_p99_ms": {name: round(value, 4) for name, value in p99.items()},
        "more_ms": round(p99["read"] - p99["not_read"], 4),
        "null_ms": round(percentile(again, 0.99) - percentile(quiet, 0.99), 4),
    }


def _read(running: Stage) -> None:
    fetch(running, "/")
    fetch(running, "/metrics")


def loads() -> dict[str, Any]:
    """Load times in a real browser with an empty cache, from navigation to the end of the load event, and all bytes."""
    times, sizes = list[float](), list[tuple[int, int]]()
    with stage(config(0.2, 0.2)) as running, sync_playwright() as started:
        time.sleep(WARM_S)
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for _ in range(LOADS):
            page = browser.new_context().new_page()
            page.goto(running.prober + "/")
            if (cards := page.locator(".card").count()) != TARGETS:
                raise RuntimeError(f"the page shows {cards} targets, not {TARGETS}")
            took, wire, raw = page.evaluate(TIMES)
            times.append(round(took, 1))
            sizes.append((wire, raw))
            page.context.close()
        browser.close()
    wire, raw = max(sizes)
    return {"load_ms": times, "wire_bytes": wire, "raw_bytes": raw}


def fetch(running: Stage, path: str) -> None:
    """Fetch a page gzipped, as a browser or Prometheus does."""
    with urllib.request.urlopen(
        urllib.request.Request(running.prober + path, headers={"Accept-Encoding": "gzip"})
    ) as answer:
        answer.read()


def steps() -> dict[str, float]:
    """Processor time in ms of what holds the event loop at once: the fleet page of 100 targets, a target's page, all quantiles."""
    rng, samples = Random(1), Samples()
    samples.add(0.0, *(rng.lognormvariate(-4, 0.5) for _ in range(SAMPLES)))
    of_page: dict[str, Callable[[], object]] = {
        "page": lambda: layout.page(page_of(hundred()), "stamp"),
        "one_in_full": lambda: layout.page(page_of(hundred()[:1]), "stamp"),
        "quantiles": lambda: [samples.quantiles() for _ in range(5)],
    }
    found = {}
    for name, make in of_page.items():
        make()  # the first compiles the templates
        begin_s = time.process_time()
        make()
        found[name] = round((time.process_time() - begin_s) * 1e3, 3)
    return found


def main() -> None:
    """Measure and print."""
    require("chromium")
    found = {**part("loads", loads()), **part("errors", measure())}
    held_ms = steps()
    middle = percentile(found["load_ms"], 0.5)
    goals = [
        goal("page of 100 targets, all that is loaded, on the wire", found["wire_bytes"] / KB, 300, "kB"),
        goal("navigation to the end of the load event, median", middle, 1_000, "ms"),
        goal("ITL error p99, page and metrics read each other second, minus not", found["more_ms"], 2.0, "ms"),
        goal("longest time for which a page holds the event loop", max(held_ms.values()), 100.0, "ms"),
    ]
    show("page", goals, held_ms=held_ms, **found)


if __name__ == "__main__":
    main()
