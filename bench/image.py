"""The image as it is shipped: its size, its start, its end, its memory; and whether a commit gives the same layers twice.

Needs root, Podman and runc, and debootstrap where the recipe's base cannot be pulled, and builds twice, so it runs only when it is
named. With a folder as its argument images are kept there, so that the base is made once.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from bench.report import goal, part, percentile, show
from tests.deploy.container import LIMIT_MB, Podman, missing, pair

CONFIG = "targets: [{{name: one, url: 'http://127.0.0.1:8000', rate: {rate}}}]\n"
STARTS = 5
KEPT = 1000


def main() -> None:
    """Measure and print."""
    if why_not := missing():
        sys.exit(f"bench.image: {why_not}")
    with tempfile.TemporaryDirectory(prefix="prober-bench-") as name:
        kept = Path(sys.argv[1]) if sys.argv[1:] else None
        podman = Podman(kept or Path(name))
        try:
            measure(podman, Path(name))
        finally:
            if kept is None:
                podman.clear()
            else:
                podman.unmount()


def measure(podman: Podman, folder: Path) -> None:
    """Build twice, start often, fill a history."""
    said = podman.build().splitlines()[-1]
    layers = set(podman.inspect()["RootFS"]["Layers"])
    podman.build()
    differing = part("layers that differ", len(layers ^ set(podman.inspect()["RootFS"]["Layers"])))
    starts, ends, codes = [], [], []
    for number in range(STARTS):
        with pair(podman, folder / f"start-{number}", CONFIG.format(rate="0.2/s")) as running:
            starts.append(running.first_request_s())
            time.sleep(3)
            code, took = running.prober.end()
            ends.append(took)
            codes.append(code)
        part("start", {"start_s": starts[-1], "end_s": took, "code": code})
    full = CONFIG.format(rate="40/s")
    with pair(podman, folder / "full", full, f"--history.limit={KEPT}", engine=("--ttft=5ms", "--itl=1ms")) as running:
        running.first_request_s()
        kept, end = 0, time.monotonic() + 180
        while kept < KEPT and time.monotonic() < end:
            time.sleep(1)
            kept = len(json.loads(running.prober.get(f"/api/v1/probes?limit={10 * KEPT}"))["data"])
        for page in ("/", "/metrics"):
            running.prober.get(page)
        memory = running.prober.memory()
        code, took = running.prober.end()
        ends.append(took)
        codes.append(code)
    show(
        "image",
        [
            goal("compressed", podman.compressed_bytes() / 1e6, 150, "MB"),
            goal("unpacked", podman.unpacked_bytes() / 1e6, 260, "MB"),
            goal("start to first request received, median", percentile(starts, 0.5), 2, "s"),
            goal(f"memory charged at {KEPT} kept results, most", memory.peak_mib, LIMIT_MB, "MiB"),
            goal("processes killed for want of memory", memory.kills, 0, ""),
            goal("SIGTERM to exit, longest", max(ends), 30, "s"),
            goal("exit codes that are not 0", sum(code != 0 for code in codes), 0, ""),
            goal("layers that differ between two builds", differing, 0, ""),
        ],
        built=said,
        kept=kept,
        resident_mib=round(memory.resident_mib, 1),
        starts_s=[round(start, 2) for start in starts],
        ends_s=[round(end, 2) for end in ends],
    )


main()
