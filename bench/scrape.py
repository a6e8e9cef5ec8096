"""Does being scraped disturb the stamps? ITL error in ms in seconds that begin with a scrape minus that in those without one.

Seconds without a page, with one as text, without, with one as protobuf follow each other, so that other work on a shared machine
falls on all of them alike; the two kinds of seconds without a page tell what is left of it (`null_ms`). One target is probed at
100 rps; silent ones beside it make the page over 30,000 lines long. It is read in forms that Prometheus asks for, gzipped as it
asks for that too: text, and protobuf with classic and native histograms.

Beside it what a page costs, and its longest slice, in processor time of this process over a registry of the same size: between
slices every stamp that is due is taken, so the longest is what a page can add to any one of them.
"""

import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

from bench.comparison import CONFIG, errors_by_turn
from bench.report import goal, part, percentile, show
from bench.stage import Stage, stage
from prober.config.load import load
from prober.config.target import TargetSpec
from prober.daemon.registry import registry
from prober.exposition import families, protobuf
from prober.exposition.families import Form, Histogram, Registry
from prober.features.slo.monitor import SloMonitor
from prober.probing.recorder import TargetProbes
from tests.observed import observed

PERIOD_S = 1.0
ROUNDS = 20
ORDER = (None, Form.TEXT, None, Form.PROTOBUF)  # None: not read
SILENT = (0, 116)
NAMES = {0: "small", 116: "large"}
PAGES = 7  # of which the middle one counts


def measure(silent: int) -> dict[str, Any]:
    """ITL error in ms by form, and without any page. `null_ms`: p99 of one half of the latter minus the other half's."""
    others = "".join(f'  - {{name: silent-{i}, url: "http://127.0.0.1:9", rate: 0.2/s}}\n' for i in range(silent))
    config = CONFIG.format(rate=100) + others
    with stage(config, history=round(100 * PERIOD_S * ROUNDS * len(ORDER) * 2)) as running:
        time.sleep(3)
        for form in ORDER:
            _scrape(running, form)  # the first page of each form is the dearest
        errors = errors_by_turn(running, [partial(_scrape, running, form) for form in ORDER], ROUNDS, PERIOD_S)
        lines = running.get("/metrics").count(b"\n")
    quiet, text, again, proto = errors
    return {
        "lines": lines,
        **{"none": _spread(quiet + again), "text": _spread(text), "protobuf": _spread(proto)},
        "null_ms": round(percentile(again, 0.99) - percentile(quiet, 0.99), 4),
    }


def _spread(errors: list[float]) -> dict[str, float]:
    return {"gaps": len(errors), **{f"p{q * 100:g}": round(percentile(errors, q), 4) for q in (0.5, 0.99, 0.999)}}


def _scrape(running: Stage, form: Form | None) -> None:
    if form:
        headers = {"Accept": form.value, "Accept-Encoding": "gzip"}
        with urllib.request.urlopen(urllib.request.Request(running.prober + "/metrics", headers=headers)) as answer:
            answer.read()


def cost(silent: int) -> dict[str, Any]:
    """Of a page all of whose histograms have changed since the last: processor time in ms, of it the longest slice; bytes."""
    found = list(filled(registry(), silent + 1).values())
    histograms = [child for each in found for child in each.children.values() if isinstance(child, Histogram)]
    rng = Random(1)
    forms: dict[Form, Callable[[], Iterator[bytes]]] = {
        Form.TEXT: lambda: families.page(found, openmetrics=False),
        Form.PROTOBUF: lambda: protobuf.page(found),
    }
    told: dict[str, Any] = {}
    for form, pages in forms.items():
        whole, longest, size = [], [], 0
        for _ in range(PAGES):
            for histogram in histograms:
                histogram.observe(*(rng.lognormvariate(-3, 0.5) for _ in range(20)))
            times, size = timed(pages())
            whole.append(sum(times))
            longest.append(max(times))
        figures = {"ms": percentile(whole, 0.5), "longest_slice_ms": percentile(longest, 0.5)}
        told[form.name.lower()] = {"bytes": size, **{name: round(value, 3) for name, value in figures.items()}}
    return told


def filled(made: Registry, targets: int) -> Registry:
    """The registry with the series of that many targets."""
    for i in range(targets):
        observed(_spec(), partial(TargetProbes, made), SloMonitor(made).observe, name=f"silent-{i}")
    return made


def _spec() -> TargetSpec:
    text = CONFIG.format(rate=100).replace("{mock}", "http://127.0.0.1:9")
    return load(text, source="bench", engines=(), environment={}, read=lambda path: path).targets[0]


def timed(pieces: Iterator[bytes]) -> tuple[list[float], int]:
    """(processor time of each slice in ms, bytes)."""
    times: list[float] = []
    size, begin = 0, time.process_time()
    for piece in pieces:
        times.append((time.process_time() - begin) * 1e3)
        size += len(piece)
        begin = time.process_time()
    return times, size


def main() -> None:
    """Measure and print."""
    goals, runs = [], []
    for silent, most in zip(SILENT, (0.5, 2.0), strict=True):
        found, costs = part(f"errors, {silent}", measure(silent)), part(f"cost, {silent}", cost(silent))
        runs.append({**found, "cost": costs})
        for form in (Form.TEXT, Form.PROTOBUF):
            name = form.name.lower()
            more = found[name]["p99"] - found["none"]["p99"]
            goals.append(goal(f"ITL error p99, scraped minus not, {NAMES[silent]} {name} page", more, most, "ms"))
            slice_ms = costs[name]["longest_slice_ms"]
            goals.append(goal(f"longest slice of the {NAMES[silent]} {name} page", slice_ms, 2.0, "ms"))
    show("scrape", goals, runs=runs)


if __name__ == "__main__":
    main()
