"""Endpoints that fail in every way there is, and a prober that is itself stopped or starved: what it says, and how soon it is well.

The real daemon at ten probes a second on loopback. Of each fault: outcomes, samples that are not of a good answer, seconds to the
first good probe after it, descriptors still open.
"""

import os
import resource
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.report import goal, show
from tests.faults.endpoint import FAULTS, Endpoint, well
from tests.faults.rig import config, descriptors, recovered, seen
from tests.processes import Daemon, until

FAULT_S = 5.0
STOP_S = 30.0
RECOVERY_S = 3.0  # the longest deadline of a probe under way, and the next due time


def meet(
    daemon: Daemon, endpoint: Endpoint, begin: Callable[[], object], end: Callable[[], object], seconds: float
) -> dict[str, Any]:
    """One fault from its begin to its end, and what is left of it."""
    before, files = seen(daemon), descriptors(daemon.process.pid)
    begin()
    time.sleep(seconds)
    recovery_s = recovered(daemon, end, 120)
    until(lambda: not endpoint.misbehaving, "the last of them to be given up")
    time.sleep(1.0)
    found = seen(daemon).since(before)
    return {
        "outcomes": dict(found.outcomes),
        "false_samples": found.samples["ttft"] - found.outcomes["ok"],
        "recovery_s": round(recovery_s, 2),
        "descriptors_more": descriptors(daemon.process.pid) - files,
    }


def stopped(daemon: Daemon) -> None:
    """For as long as the goal says, and then go on."""
    os.kill(daemon.process.pid, signal.SIGSTOP)
    time.sleep(STOP_S)
    os.kill(daemon.process.pid, signal.SIGCONT)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory(prefix="prober-faults-") as name, Endpoint() as endpoint:
        text = config(f"http://127.0.0.1:{endpoint.port}", lag="100ms")
        with Daemon(Path(name), text) as daemon:
            until(lambda: seen(daemon).outcomes["ok"] >= 20, "good probes")
            files = descriptors(daemon.process.pid)

            def acts(act: Any) -> Callable[[], None]:
                return lambda: setattr(endpoint, "act", act)

            target = {what: meet(daemon, endpoint, acts(act), acts(well), FAULT_S) for what, (act, _) in FAULTS.items()}
            wrong = sum(
                count
                for what, (_, outcome) in FAULTS.items()
                for said, count in target[what]["outcomes"].items()
                if said not in ("ok", outcome, "invalid")
            )
            target["is gone"] = meet(daemon, endpoint, endpoint.down, endpoint.up, FAULT_S)
            pid = daemon.process.pid
            limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)

            def descriptors_are(soft: int) -> Callable[[], object]:
                return lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, limits[1]))

            own = {
                "stopped for 30 s": meet(daemon, endpoint, lambda: stopped(daemon), lambda: None, 0.0),
                "no descriptors": meet(daemon, endpoint, descriptors_are(3), descriptors_are(limits[0]), FAULT_S),
            }
            trusted = daemon.value("llmslo_trusted")
            time.sleep(3)
            left = descriptors(pid) - files
    everything = {**target, **own}
    blamed = sum(
        count for each in own.values() for said, count in each["outcomes"].items() if said not in ("ok", "invalid")
    )
    show(
        "faults",
        [
            goal(
                "samples that are not of a good answer",
                sum(each["false_samples"] for each in everything.values()),
                0,
                "samples",
            ),
            goal("probes named otherwise than the fault", wrong, 0, "probes"),
            goal("probes of a stopped or starved prober that blame the target", blamed, 0, "probes"),
            goal("trusted after being stopped and starved", trusted, 0, "1 or 0"),
            goal("slowest recovery", max(each["recovery_s"] for each in everything.values()), RECOVERY_S, "s"),
            goal("descriptors left over after all", left, 5, "descriptors"),
        ],
        faults=everything,
    )


if __name__ == "__main__":
    main()
