"""How many series does a target make? The daemon beside a mock, with classic histograms and with one series for each histogram.

The rows are those of the table in docs/series.md; the goals compare it with what was counted, but for a few series that come and go.
A row is the difference between two daemons. GPUs are those of the tests' stand-in for NVIDIA's driver library, which answers every
call. Eight minutes.
"""

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.report import goal, part, require, show
from bench.stage import stage

ROOT = Path(__file__).parents[1]
TABLE = re.compile(r"^\| ([^|]+) \| (\d+) \| (\d+) \|$", re.MULTILINE)
PROBES, FURTHER, PAGE, SWEEPS, GPU = (
    "its probes, with one workload and one SLO",
    "each further SLO of a latency",
    "the engine's metrics page, as vLLM has it",
    "sweeps, after the first one",
    "each GPU",
)
ONE_SLO = "ttft: {signal: ttft, threshold: 500ms, objective: 99%}"
TWO_SLOS = f"{ONE_SLO}, itl: {{signal: itl, threshold: 50ms, objective: 99%}}"
SWEEP = ", sweep: {schedule: '* * * * *', spread: 0s, mode: adaptive, max_rate: 60/s}"
SERIES = re.compile(r'^(llmslo_\w+)\{(.*\btarget="[^}]*)\} ', re.MULTILINE)
SETTLE_S, LONGEST_S = 30.0, 300.0

Counted = tuple[int, int]  # with classic histograms, with one series for each


def counted(page: str) -> Counted:
    """Series of a target on a metrics page in text."""
    histograms = set(re.findall(r"^# TYPE (\S+) histogram$", page, re.MULTILINE))
    classic, single = 0, set()
    for name, labels in SERIES.findall(page):
        classic += 1
        family = re.sub(r"_(bucket|sum|count)$", "", name)
        single.add((family, re.sub(r',?le="[^"]*"', "", labels)) if family in histograms else (name, labels))
    return classic, len(single)


def measured(slos: str, more: str, *mock: str, until: str | None = None) -> Counted:
    """The series once the page has `until` and then shows no new ones for half a minute.

    slos, more: of the configuration; mock: options of the mock
    """
    config = f"slos: {{{slos}}}\ndefaults: {{rate: 5/s, warmup: 0}}\ntargets: [{{name: mock, url: '{{mock}}'{more}}}]\n"
    with stage(config, *mock) as on:
        begun_s = since_s = time.monotonic()
        last = (0, 0)
        while True:
            page = on.get("/metrics").decode()
            now_s, found = time.monotonic(), counted(page)
            if found != last or (until and until not in page):
                last, since_s = found, now_s
            if now_s - since_s > SETTLE_S:
                return found
            if now_s - begun_s > LONGEST_S:
                raise RuntimeError(f"after {LONGEST_S:g} s: {until} missing or series still changing; {found}")
            time.sleep(2)


def with_gpus(count: int) -> Callable[[], Counted]:
    """Measures the series beside so many GPUs of the stand-in."""

    def of_daemon() -> Counted:
        with tempfile.TemporaryDirectory(prefix="prober-bench-") as name:
            folder = Path(name)
            source, library = ROOT / "tests/features/gpu/nvml_stub.c", folder / "libnvidia-ml.so.1"
            subprocess.run(("cc", "-shared", "-fPIC", "-o", str(library), str(source), "-lpthread", "-lm"), check=True)
            (folder / "settings").write_text(f"count={count}\nlinks=18\n")
            os.environ |= {"LD_LIBRARY_PATH": name, "NVML_STUB": str(folder / "settings")}
            try:
                return measured(ONE_SLO, ", metrics: {url: none}, gpus: {indices: all}", until="llmslo_gpu_")
            finally:
                del os.environ["LD_LIBRARY_PATH"], os.environ["NVML_STUB"]

    return of_daemon


def less(of_more: Counted, of_fewer: Counted) -> Counted:
    """What one daemon has more than another."""
    return of_more[0] - of_fewer[0], of_more[1] - of_fewer[1]


def main() -> None:
    """Print the result."""
    require("cc")
    no_page = ", metrics: {url: none}"
    probes = part(PROBES, measured(ONE_SLO, no_page))
    two = measured(TWO_SLOS, no_page)
    page = measured(ONE_SLO, "", until="llmslo_engine_")
    one_gpu, two_gpus = with_gpus(1)(), with_gpus(2)()
    swept = measured(ONE_SLO, SWEEP, "--engine", "simulated", until="llmslo_capacity_requests_per_second{")
    unswept = measured(ONE_SLO, "", "--engine", "simulated", until="llmslo_engine_")
    rows = {
        PROBES: probes,
        FURTHER: less(two, probes),
        PAGE: less(page, probes),
        SWEEPS: less(swept, unswept),
        GPU: less(two_gpus, one_gpu),
    }
    stated = {
        name: (int(classic), int(single))
        for name, classic, single in TABLE.findall((ROOT / "docs/series.md").read_text(encoding="utf-8"))
    }
    goals = [
        goal(f"{name}: series beside those of the table, {kind}", abs(found - said), max(3, said * 0.05), "series")
        for name, of_row in rows.items()
        for kind, found, said in zip(("classic", "native"), of_row, stated.get(name, (0, 0)), strict=True)
    ]
    show("cardinality", goals, rows=rows, first_gpu=less(one_gpu, probes))


if __name__ == "__main__":
    main()
