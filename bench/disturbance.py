"""Does reading the engine's page, or the GPUs, disturb the stamps? ITL errors in ms with each, minus without, in one run.

Blocks of BLOCK_S at 100 rps alternate between off and page, GPUs, both; each has a fresh mock and daemon, with the same due times.
Two comparisons, as a shared machine's other work changes from block to block: the p99 of all blocks of an arm minus that of all
off blocks; and within its blocks that of all gaps minus that of the gaps away from any reading.

The page is vLLM's of two ranks, about 1,000 lines, as text, which the prober asks for, its counters growing, from a process of its own.
The GPUs are eight of the tests' stub of the driver's library; its calls spin for CALLS_US, the longest that others have
reported or more. The daemon reads them every 5 s, too seldom for a p99 of all gaps: `near_ms` is the p99 while it reads.
"""

import contextlib
import itertools
import multiprocessing
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench.comparison import CONFIG, itl_errors_ms, pairs
from bench.parse import PAGE, ranks
from bench.report import goal, part, percentile, show
from bench.stage import Stage, free_port, stage

GOALS = (("page", "a 1,000-line engine page every 0.5 s"), ("gpu", "the GPU reader"), ("both", "both"))
ORDER = ("off", "page", "off", "gpu", "off", "both") * 2
BLOCK_S = 14
PAGES = 600  # made before the first is asked for
PAGE_NS = (-5_000_000, 20_000_000)  # around a page's way out of its server: fetched, parsed, read
GAP_NS = 12_000_000  # a gap that ends this late after a reading of the GPUs may have begun in it
GPUS = 8
CALLS_US = {"EventSetWait": 0, "GetHandleByIndex": 6000, "GetUUID": 6000, "GetName": 6000, "GetFieldValues": 500,
            "GpmSampleGet": 1000, "": 100}  # fmt: skip
STUB = Path(__file__).parent.parent / "tests/features/gpu/nvml_stub.c"
COUNTER = re.compile(r"(vllm:\w+_(?:total|bucket|count|sum)\{.*\}) (\S+)")
SPIN = """
#include <time.h>
static long long now_ns(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000LL + t.tv_nsec; }
static void spin(const char *name) {
    static FILE *calls;
    long long begin = now_ns(), end = begin + 1000LL * (TIMES);
    if (end == begin) return;
    while (now_ns() < end);
    if (!calls) calls = fopen(getenv("NVML_CALLS"), "a");
    fprintf(calls, "%lld %lld %s\\n", begin, end, name);
    fflush(calls);
}
"""


@dataclass(slots=True)
class Arm:
    """What one arm's blocks have given: errors in ms, around a reading and away from any; shares of a core in per cent."""

    near: list[float] = field(default_factory=list)
    away: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    p99s: list[float] = field(default_factory=list)
    pages: int = 0
    reads: list[float] = field(default_factory=list)  # how long each reading of the GPUs took, in ms
    gpu_series: int = 0

    def more_ms(self) -> float:
        """The p99 of all gaps minus that of those away from any reading."""
        return self.p99_ms() - percentile(self.away, 0.99)

    def p99_ms(self) -> float:
        """Of all gaps."""
        return percentile(self.near + self.away, 0.99)

    def told(self) -> dict[str, Any]:
        """For the report."""
        return {
            "gaps": len(self.near) + len(self.away),
            "ms": spread(self.near + self.away),
            "away_ms": spread(self.away),
            "near_gaps": len(self.near),
            "near_ms": spread(self.near) if self.near else None,
            "block_p99_ms": [round(p99, 4) for p99 in self.p99s],
            "processor_share_percent": round(sum(self.shares) / len(self.shares), 3),
            "block_share_percent": [round(share, 3) for share in self.shares],
            "pages_read": self.pages,
            "gpu_readings": len(self.reads),
            "gpu_reading_ms": round(percentile(self.reads, 0.5), 2) if self.reads else None,
            "gpu_series": self.gpu_series,
        }


def spread(values: list[float]) -> dict[str, float]:
    """Order statistics in ms."""
    return {f"p{q * 100:g}": round(percentile(values, q), 4) for q in (0.5, 0.99, 0.999)}


def numbered(body: str, number: int) -> bytes:
    """The page with every counter `number` times what it was."""
    grown = COUNTER.sub(lambda found: f"{found[1]} {float(found[2]) * number}", body)
    return grown.encode()


def serve(port: int, body: str, log: Path) -> None:
    """The engine's page on loopback. Notes the moment and number of each page."""
    bodies = [numbered(body, number) for number in range(1, PAGES + 1)]
    numbers = itertools.count(1)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = next(numbers)
            with log.open("a") as notes:
                notes.write(f"{time.monotonic_ns()} {number}\n")
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            with contextlib.suppress(ConnectionError):  # the daemon may end meanwhile
                self.end_headers()
                self.wfile.write(bodies[number - 1])

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


def build(folder: Path) -> None:
    """The stub with eight GPUs whose calls take their time and are noted, and which waits for faults as a driver does."""
    source = STUB.read_text()
    times = "".join(f'!strcmp(name, "{name}") ? {us} : ' for name, us in CALLS_US.items() if name) + str(CALLS_US[""])
    count = "static void count(const char *name) {\n"
    for old, new in (
        ("#define GPUS 4", f"#define GPUS {GPUS}"),
        ('setting("count", 2)', f'setting("count", {GPUS})'),
        ("of(key, on->gpu, -1)", "of(key, on->gpu, 18)"),  # all counters of the buses answer
        ("usleep(1000);", "usleep(1000 * milliseconds); waited = milliseconds;"),
        (count, SPIN.replace("TIMES", times) + count + "    spin(name);\n"),
    ):
        if source.count(old) != 1:
            raise RuntimeError(f"{STUB} has changed: {old!r} is not there once")
        source = source.replace(old, new)
    options = ["-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / "libnvidia-ml.so.1"), "-lpthread", "-lm"]
    subprocess.run(["cc", "-O1", *options], input=source.encode(), check=True)


@contextlib.contextmanager
def environment(**values: str) -> Iterator[None]:
    """Variables for the processes that are started meanwhile."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def config(url: str | None) -> str:
    """100 rps, the page read twice a second, the GPUs shown with the target that is probed."""
    read = f'{{url: "{url}/metrics", interval: 500ms}}' if url else "{url: none}"
    return CONFIG.format(rate=100).replace("probes:", f"gpus: {{indices: all}}, metrics: {read}, probes:")


def notes(path: Path) -> list[list[str]]:
    """The lines of a file, split; none if there is no file."""
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def gpu_readings(folder: Path) -> list[tuple[int, int]]:
    """(begin, end) of each reading of the GPUs: what begins with counting them. Giving back at the end is no part of it."""
    found: list[tuple[int, int]] = []
    for begin, end, name in notes(folder / "calls"):
        if name == "GetCount":
            found.append((int(begin), int(end)))
        elif found and not name.endswith(("Free", "Shutdown")):
            found[-1] = (found[-1][0], int(end))
    return found


def value(page: str, name: str) -> float | None:
    """Of the probed target's series `name`, on the daemon's page."""
    found = re.search(rf'^{name}{{target="mock"}} (\S+)$', page, re.MULTILINE)
    return float(found[1]) if found else None


def check(kind: str, page: str, tokens: float, served: list[list[str]]) -> int:
    """How many GPU series the daemon shows. Raises RuntimeError if it has not read what this arm reads, or reads more."""
    up, shown = value(page, "llmslo_engine_up"), value(page, "llmslo_engine_generation_tokens_total")
    last = [tokens * int(number) for _, number in served][-2:]
    series = len(re.findall(r'^llmslo_gpu_\w+{target="mock"', page, re.MULTILINE))
    if (up, shown in last) != ((1.0, True) if kind in ("page", "both") else (None, False)):
        raise RuntimeError(f"{kind}: the daemon shows engine_up {up} and {shown} tokens, the page had {last}")
    if (len(re.findall(r'^llmslo_gpu_info{target="mock"', page, re.MULTILINE)) == GPUS) != (kind in ("gpu", "both")):
        raise RuntimeError(f"{kind}: the daemon shows {series} GPU series")
    return series


def block(kind: str, arm: Arm, url: str, folder: Path, tokens: float) -> None:
    """One block of an arm, added to it."""
    gpus = {"LD_LIBRARY_PATH": str(folder)} if kind in ("gpu", "both") else {}
    read = url if kind in ("page", "both") else None
    (folder / "calls").unlink(missing_ok=True)
    variables = {"POD_NAME": "bench", "NVML_CALLS": str(folder / "calls"), **gpus}
    with environment(**variables), stage(config(read), history=BLOCK_S * 300) as running:
        time.sleep(3)
        cpu, begin = running.cpu_s(), time.monotonic_ns()
        time.sleep(BLOCK_S)
        cpu, end = running.cpu_s() - cpu, time.monotonic_ns()
        served = notes(folder / "served")
        arm.gpu_series = check(kind, running.get("/metrics").decode(), tokens, served)
        time.sleep(1.5)
        errors = gap_errors(running, begin, end)
    pages = [int(at) for at, _ in served if begin <= int(at) < end]
    reads = [(a, b) for a, b in gpu_readings(folder) if begin <= a and b < end]
    spans = [(at + PAGE_NS[0], at + PAGE_NS[1]) for at in pages] + [(a, b + GAP_NS) for a, b in reads]
    for at, error in errors:
        (arm.near if any(a <= at < b for a, b in spans) else arm.away).append(error)
    arm.p99s.append(percentile([error for _, error in errors], 0.99))
    arm.shares.append(cpu / ((end - begin) / 1e9) * 100)
    arm.pages += len(pages)
    arm.reads += [(b - a) / 1e6 for a, b in reads]


def gap_errors(running: Stage, begin: int, end: int) -> list[tuple[int, float]]:
    """(stamp, error in ms) of the gaps of all successful probes due between `begin` and `end`."""
    _, good = pairs(running, begin, end)
    return list(itl_errors_ms(good))


def main() -> None:
    """Measure and print."""
    body = ranks(PAGE.read_bytes(), 2).decode()
    tokens = sum(float(found[2]) for found in COUNTER.finditer(body) if found[1].startswith("vllm:generation_tokens_"))
    arms = {kind: Arm() for kind in dict.fromkeys(ORDER)}
    with tempfile.TemporaryDirectory(prefix="prober-bench-") as name:
        folder, port = Path(name), free_port()
        build(folder)
        engine = multiprocessing.Process(target=serve, args=(port, body, folder / "served"), daemon=True)
        engine.start()
        try:
            for kind in ORDER:
                block(kind, arms[kind], f"http://127.0.0.1:{port}", folder, tokens)
                part(kind, {"itl_error_p99_ms": arms[kind].p99s[-1], "core_percent": arms[kind].shares[-1]})
        finally:
            engine.terminate()
    off = percentile(arms["off"].away, 0.99)
    goals = [
        entry
        for kind, what in GOALS
        for entry in (
            goal(f"ITL error p99 with {what}, minus without", arms[kind].p99_ms() - off, 0.5, "ms"),
            goal(f"the same, minus that of gaps away from readings ({kind})", arms[kind].more_ms(), 0.5, "ms"),
        )
    ]
    show(
        "disturbance",
        goals,
        page_lines=body.count("\n"),
        **{kind: arm.told() for kind, arm in arms.items()},
    )


if __name__ == "__main__":
    main()
