"""A process that probes one target once and reads its engine's page and facts twice: `python -m tests.security.read_bombs URL`.

Prints what it logged, the outcome, and the peak of its resident memory in MiB, before and after.
"""

import asyncio
import io
import json
import logging
import sys
from pathlib import Path

from prober.config.serving import MetricsSpec
from prober.features.engines.page_reader import PageReader
from prober.measure.engine_signals import EngineChange, PageReading
from prober.net.clock import Clock
from prober.probing.target import Target
from tests.security.hostile_engine import probe, target_spec


class Listener:
    """Counts readings of the page."""

    def __init__(self) -> None:
        self.read = 0

    def page_read(self, reading: PageReading | None) -> None:
        self.read += reading is not None

    def engine_changed(self, change: EngineChange) -> None:
        pass


def peak_mib() -> float:
    """Peak of this program so far. `ru_maxrss` would count the process from which it was started, too."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


async def read(url: str) -> dict[str, object]:
    """Probe the target and read its page."""
    clock, listener = Clock(), Listener()
    target = Target(target_spec(url), clock)
    reader = PageReader(target, MetricsSpec(interval=5.0), clock, listener, lambda: "t")
    before = peak_mib()
    result = await probe(target, clock)
    for _ in range(2):
        await reader.read()
    clock.close()
    return {
        "outcome": result.outcome,
        "detail": result.detail,
        "model": result.model,
        "read": listener.read,
        "grown_mib": peak_mib() - before,
        "peak_mib": peak_mib(),
    }


if __name__ == "__main__":
    log = io.StringIO()
    logging.basicConfig(stream=log, level=logging.WARNING, format="%(message)s")
    print(json.dumps(asyncio.run(read(sys.argv[1])) | {"log": log.getvalue().splitlines()}))
