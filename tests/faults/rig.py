"""The real daemon under a fault: what it says, what it keeps open, how soon it is itself again."""

import json
import math
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from prober.measure.outcome import NEUTRAL
from prober.storage.store import FILE_NAME
from tests.processes import HANG_S, Daemon, get, until

# Ten probes a second, each as small as can be, and deadlines as short as a busy machine allows.
CONFIG = """
defaults: {{rate: {rate}/s, arrivals: constant, warmup: 0, connect_lead: 50ms, max_in_flight: 100,
  timeouts: {{connect: {timeout}, first_token: {timeout}, stall: {timeout}, total: {total}}}}}
workloads: {{tiny: {{prompt_tokens: 20, output_tokens: 4}}}}
targets:
  - {{name: one, url: '{url}', metrics: {{url: {page}}}, probes: [{{workload: tiny}}]{more}}}
"""


def config(
    url: str,
    *,
    rate: float = 10,
    timeout: str = "1s",
    total: str = "2s",
    page: str = "none",
    more: str = "",
) -> str:
    """Of one target, that is called `one`."""
    return CONFIG.format(url=url, rate=rate, timeout=timeout, total=total, page=page, more=f", {more}" if more else "")


patient = partial(config, timeout="8s", total="12s")
"""The configuration of tests: the endpoint is in their process, which may stand still for seconds."""

SAVED_AGAIN = "budget states are saved again"  # in the log, after the first successful write


class Impossible(Exception):
    """This machine cannot do it; the message says why."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Counts of the prober up to now. outcomes: probes by outcome; samples: observations, answers without TTFT (untimed)."""

    outcomes: Counter[str]
    samples: Counter[str]

    def since(self, before: "Seen") -> "Seen":
        """The difference to an earlier state."""
        return Seen(self.outcomes - before.outcomes, self.samples - before.samples)

    @property
    def worst(self) -> str:
        """The outcome that most of what was not well had."""
        return next((name for name, _ in self.outcomes.most_common() if name != "ok"), "ok")


def seen(daemon: Daemon) -> Seen:
    """The counts on the metrics page at one moment."""
    outcomes, samples = Counter[str](), Counter[str]()
    for line in get(daemon.url + "/metrics").splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith(("llmslo_probe_failures_total", "llmslo_probes_neutral_total")):
            outcomes[name.split('="')[-1].split('"')[0]] += round(float(value))  # the last label
        elif name.startswith("llmslo_probes_total{"):
            outcomes["ok"] += round(float(value))
        elif name.startswith(("llmslo_ttft_seconds_count", "llmslo_itl_seconds_count", "llmslo_e2e_seconds_count")):
            samples[name.split("_")[1]] += round(float(value))
        elif name.startswith("llmslo_probes_untimed_total"):
            samples["untimed"] += round(float(value))
    bad = {name: count for name, count in outcomes.items() if name not in ("ok", *NEUTRAL)}
    outcomes["ok"] -= sum(bad.values())
    return Seen(+outcomes, +samples)


def probes(daemon: Daemon) -> list[dict[str, object]]:
    """All that are remembered, latest first."""
    rows: list[dict[str, object]] = json.loads(get(daemon.url + "/api/v1/probes?limit=100000"))["data"]
    return rows


def descriptors(pid: int) -> int:
    """The number of open files and sockets of the process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def series(daemon: Daemon) -> int:
    """Samples on its own page."""
    return sum(not line.startswith("#") for line in get(daemon.url + "/metrics").splitlines())


def resident_mb(pid: int) -> float:
    """Memory that it holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def kept_tokens(folder: Path) -> float:
    """The spent tokens in the store of this folder."""
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        ((data,),) = connection.execute("SELECT data FROM state WHERE kind = 'budget'")
    return float(sum(json.loads(data)["budgets"]["tokens"].values()))


def recovered(daemon: Daemon, begin: Callable[[], object], seconds: float = HANG_S) -> float:
    """Seconds from `begin`, which ends a fault, to the first probe that is `ok` and was due after it."""
    begin()
    began = time.monotonic()
    before: Seen = until(lambda: seen(daemon), "its page")  # which it may not be able to show before
    until(lambda: seen(daemon).outcomes["ok"] > before.outcomes["ok"], "a good probe", seconds)
    return time.monotonic() - began


def settled(daemon: Daemon, most: int) -> None:
    """Wait until at most `most` descriptors are open again."""
    until(lambda: descriptors(daemon.process.pid) <= most, f"at most {most} descriptors")


def slow_samples(daemon: Daemon, above_s: float) -> int:
    """The number of TTFTs and ITLs on a page above the bound at or after this duration."""
    page, slow = get(daemon.url + "/metrics").splitlines(), 0.0
    for signal in ("ttft", "itl"):
        within = {
            float(line.split('le="')[1].split('"')[0]): float(line.rpartition(" ")[2])
            for line in page
            if line.startswith(f"llmslo_{signal}_seconds_bucket")
        }
        slow += within[math.inf] - within[min(le for le in within if le >= above_s)]
    return round(slow)
