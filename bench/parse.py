"""Cost of reading an engine's page.

Pages are vLLM's: one rank as it was captured under load, and the same with eight ranks. Medians of the process's own CPU time.
"""

import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from bench.report import goal, show
from prober.exposition.parse import Parser
from prober.features.engines.page_reading import needed_metrics, recognise
from prober.features.engines.page_reading import read_signals as read
from prober.measure.engines import TABLES, tables

PAGE = Path(__file__).parent.parent / "tests/pages/vllm_0.32.0_under_load.prom"
TIMES = 200


def ranks(body: bytes, count: int) -> bytes:
    """The page as `count` data-parallel ranks write it: each series once for each."""
    lines = []
    for line in body.decode().splitlines():
        copies = count if 'engine="0"' in line else 1
        lines += [line.replace('engine="0"', f'engine="{rank}"') for rank in range(copies)]
    return ("\n".join(lines) + "\n").encode()


def median_ms(work: Callable[[], object], times: int = TIMES) -> float:
    """Median CPU time of a call, after one that is not counted."""
    work()
    taken = []
    for _ in range(times):
        begin = time.process_time_ns()
        work()
        taken.append((time.process_time_ns() - begin) / 1e6)
    return statistics.median(taken)


def measure(body: bytes) -> dict[str, Any]:
    """Times in ms: all names, the wanted ones with and without what the parser remembers, and the signals of the page."""
    names = needed_metrics(tables("vllm"))
    parser = Parser(names)
    page = parser.parse(body)
    table = recognise(Parser().parse(body), TABLES)
    assert table is not None
    everything = Parser()
    return {
        "lines": body.count(b"\n"),
        "series_wanted": sum(len(samples) for samples in page.samples.values()),
        "all_ms": median_ms(lambda: everything.parse(body)),
        "first_ms": median_ms(lambda: Parser().parse(body)),
        "wanted_ms": median_ms(lambda: parser.parse(body)),
        "signals_ms": median_ms(lambda: read(page, table, version="0.32.0", model="tiny")),
        "prometheus_client_ms": median_ms(lambda: list(text_string_to_metric_families(body.decode())), 20),
    }


def main() -> None:
    """Measure and print."""
    body = PAGE.read_bytes()
    assert re.search(rb'engine="0"', body)
    one, eight = measure(body), measure(ranks(body, 8))
    show(
        "parse",
        [
            goal("629 lines, all names", one["all_ms"], 2.0, "ms"),
            goal("629 lines, first time", one["first_ms"], 2.0, "ms"),
            goal("629 lines, wanted names", one["wanted_ms"], 1.0, "ms"),
            goal("signals of one rank's page", one["signals_ms"], 1.0, "ms"),
        ],
        runs=[one, eight],
    )


if __name__ == "__main__":
    main()
