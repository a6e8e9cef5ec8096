"""What does a page of metrics cost? Processor time and bytes of text and protobuf, and what three labels of targets add.

Pages of a registry as small as one target makes it, and as large as 117 do. Every histogram has changed since the page before. Between
slices every stamp that is due is taken, so the longest slice is what a page can add to any one of them. With labels and without, pages
of 500 targets alternate, so that other work on a shared machine falls on both.
"""

import gzip
import time
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

from bench.comparison import CONFIG
from bench.report import goal, part, percentile, show
from prober.config.load import load
from prober.daemon.registry import registry
from prober.exposition import families, protobuf
from prober.exposition.families import Family, Form, Histogram, Registry
from prober.features.slo.monitor import SloMonitor
from prober.probing.recorder import TargetProbes
from tests.observed import observed

TARGETS = {"small": 1, "large": 117}
LABELLED_TARGETS = 500
LABELS = (("env", "prod"), ("team", "search"), ("tier", "gold"))
PAGES = 7  # of which the middle one counts


def filled(targets: int, labels: tuple[tuple[str, str], ...] = ()) -> list[Family]:
    """The families of that many targets."""
    made: Registry = registry()
    text = CONFIG.format(rate=100).replace("{mock}", "http://127.0.0.1:9")
    (spec,) = load(text, source="bench", engines=(), environment={}, read=lambda path: path).targets
    for number in range(targets):
        observed(spec, partial(TargetProbes, made), SloMonitor(made).observe, name=f"silent-{number}")
        if labels:
            made.label(f"silent-{number}", labels)
    return list(made.values())


def change(found: list[Family]) -> None:
    """Observe something in each histogram."""
    rng = Random(1)
    for family in found:
        for child in family.children.values():
            if isinstance(child, Histogram):
                child.observe(*(rng.lognormvariate(-3, 0.5) for _ in range(20)))


def timed(pieces: Iterator[bytes]) -> tuple[list[float], bytes]:
    """(processor time of each slice in ms, page)."""
    times, page, begin = list[float](), bytearray(), time.process_time()
    for piece in pieces:
        times.append((time.process_time() - begin) * 1e3)
        page += piece
        begin = time.process_time()
    return times, bytes(page)


def cost(targets: int) -> dict[str, Any]:
    """By form: processor time of a page in ms, of it the longest slice; bytes."""
    found = filled(targets)
    forms: dict[Form, Callable[[], Iterator[bytes]]] = {
        Form.TEXT: lambda: families.page(found, openmetrics=False),
        Form.PROTOBUF: lambda: protobuf.page(found),
    }
    figures: dict[str, Any] = {}
    for form, pages in forms.items():
        sums, longest, page = list[float](), list[float](), b""
        for _ in range(PAGES):
            change(found)
            times, page = timed(pages())
            sums.append(sum(times))
            longest.append(max(times))
        middle = {"ms": percentile(sums, 0.5), "longest_slice_ms": percentile(longest, 0.5)}
        figures[form.name.lower()] = {"bytes": len(page), **{name: round(ms, 3) for name, ms in middle.items()}}
    return figures


def labels() -> dict[str, float]:
    """Bytes, bytes when gzipped, and processor time of a page with labels, each over that without."""
    found = [filled(LABELLED_TARGETS), filled(LABELLED_TARGETS, LABELS)]
    times, pages = [list[float](), list[float]()], [b"", b""]
    for _ in range(PAGES):
        for number, registered in enumerate(found):
            change(registered)
            slices, pages[number] = timed(families.page(registered, openmetrics=False))
            times[number].append(sum(slices))
    plain, labelled = (
        {"bytes": len(page), "gzipped bytes": len(gzip.compress(page, 6)), "processor time": percentile(of, 0.5)}
        for page, of in zip(pages, times, strict=True)
    )
    return {name: round(labelled[name] / plain[name], 3) for name in plain}


def main() -> None:
    """Measure and print."""
    costs = {name: part(name, cost(targets)) for name, targets in TARGETS.items()}
    ratios = part("labels", labels())
    goals = [
        goal(f"longest slice of the {name} {form} page", of[form]["longest_slice_ms"], 2.0, "ms")
        for name, of in costs.items()
        for form in of
    ]
    most = {"bytes": 1.6, "gzipped bytes": 1.2, "processor time": 1.3}
    goals += [goal(f"{name} over that without labels", ratio, most[name], "") for name, ratio in ratios.items()]
    show("scrape", goals, pages=costs, labels=ratios)


if __name__ == "__main__":
    main()
