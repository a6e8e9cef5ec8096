"""An hour of the real daemon at fifty times the default rate: does its memory grow, its schedule drift, a task or a socket stay?

Nine probes a second at constant intervals go to a mock that behaves, one a second to a mock whose faults change every 20 s, so that
the ways in which a probe fails are soaked too. A scraper comes every 5 s, as text and as protobuf in turn, a viewer of pages and API
every minute, the configuration is reloaded every ten; engines' pages are read and states are stored as by default.

Memory is judged after WARM_S, when all that is bounded is full: 100 successes and 400 failures a target, 150 readings of an engine's
page, 8,192 samples of a signal (at 9/s after 15 minutes), the drift baseline learnt of 5,000, and two rounds of faults. RSS is read
every 5 s; a minute counts as its median. The slope is that of Theil and Sen, the median of the slopes between all pairs of minutes,
which one odd minute does not move.

Tasks and blocks are counted inside the daemon by a handler of SIGUSR2 that the environment brings in; it is else what users run.
"""

import argparse
import contextlib
import gzip
import http.client
import itertools
import json
import math
import os
import signal
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from bench.report import goal, part, show
from prober.exposition.families import Form
from tests.processes import Daemon, Mock, get

RATE, FAULTY_RATE = 9, 1
IN_FLIGHT = 2 * RATE  # a probe takes less than two seconds: so many may be under way at one look and not at the other
TICK_S, PAGE_EVERY_S, RELOAD_EVERY_S = 5.0, 60.0, 600.0
WARM_S = 20 * 60.0
FAULTS = ("http:503", "reset:3", "stall:3", "malformed:3", "truncated:3", "error_in_stream:3", "hang", "http_html", "wrong_done",
          "big_line:3000000", "endless", "late_headers:1s", "http:429", "empty", "short")  # fmt: skip
FAULT_S = 20
PAGES = ("/", "/api/v1/targets", "/api/v1/probes?limit=100", "/api/v1/events", "/-/healthy")
CONFIG = """
targets:
  - {{name: steady, url: "{steady}", probes: [{{rate: {rate}/s, arrivals: constant}}]}}
  - name: faulty
    url: "{faulty}"
    probes: [{{rate: {faulty_rate}/s}}]
    timeouts: {{first_token: 3s, stall: 2s, total: 8s}}
slos:
  ttft: {{signal: ttft, threshold: 500ms, objective: 99%}}
  success: {{signal: success, objective: 99%}}
"""
HOOK = """
import asyncio, gc, json, os, signal, sys, collections
def tell(*_):
    path = os.environ["SOAK_TOLD"]
    found = {"tasks": sum(not task.done() for task in list(asyncio.tasks._all_tasks)), "blocks": sys.getallocatedblocks()}
    if os.path.exists(path + ".census"):
        os.unlink(path + ".census")
        found["census"] = collections.Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    with open(path + ".new", "w") as file:
        json.dump(found, file)
    os.replace(path + ".new", path)
if "run" in sys.orig_argv:
    signal.signal(signal.SIGUSR2, tell)
"""


class Watched:
    """The daemon, as it is seen from outside and by its hook. Values are lists of (seconds since the start, value)."""

    def __init__(self, daemon: Daemon, told: Path) -> None:
        self.daemon, self._told = daemon, told
        self._proc = Path(f"/proc/{daemon.process.pid}")
        host = urlsplit(daemon.url)
        self._kept = http.client.HTTPConnection(host.hostname or "", host.port, timeout=30)
        self.seen: dict[str, list[tuple[float, float]]] = {}
        self.lags: list[tuple[float, dict[float, float]]] = []  # cumulative buckets of the send lag
        self.intended_ns: set[int] = set()
        self.counted: list[
            tuple[int, float]
        ] = []  # (latest due time that the API knows, due times that the page has counted)
        self.census: list[Counter[str]] = []
        self.baseline_s: float | None = None  # when the first was learnt
        self.began = time.monotonic()

    def note(self, name: str, value: float) -> None:
        """One value, now."""
        self.seen.setdefault(name, []).append((time.monotonic() - self.began, value))

    def read(self, *, census: bool = False) -> None:
        """Memory, descriptors, threads, tasks."""
        if census:
            Path(f"{self._told}.census").touch()
        self._told.unlink(missing_ok=True)
        self.daemon.process.send_signal(signal.SIGUSR2)
        fields = dict(line.split()[:2] for line in (self._proc / "smaps_rollup").read_text().splitlines()[1:])
        for name, field in (("rss_mb", "Rss:"), ("pss_mb", "Pss:"), ("anonymous_mb", "Anonymous:")):
            self.note(name, int(fields[field]) / 1024)
        links = [link for path in (self._proc / "fd").iterdir() if (link := _link(path))]
        self.note("fds", len(links))
        self.note("sockets", sum(link.startswith("socket:") for link in links))
        self.note("threads", sum(1 for _ in (self._proc / "task").iterdir()))
        end = time.monotonic() + 2
        while not self._told.exists() and time.monotonic() < end:
            time.sleep(0.01)
        found = json.loads(self._told.read_text())
        self.note("tasks", found["tasks"])
        self.note("blocks", found["blocks"])
        if "census" in found:
            self.census.append(Counter(found["census"]))

    def scrape(self, form: Form) -> None:
        """The page for Prometheus, on a connection that stays open; what the text says of schedule and drift is kept."""
        self._kept.request("GET", "/metrics", headers={"Accept": form.value, "Accept-Encoding": "gzip"})
        answer = self._kept.getresponse()
        body = answer.read()
        if answer.getheader("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        if form is not Form.TEXT:
            return
        sent, lags = 0.0, dict[float, float]()
        for family in text_string_to_metric_families(body.decode()):
            for name, labels, value, *_ in family.samples:
                if labels.get("target") == "steady":
                    sent += value if name in ("llmslo_probes_total", "llmslo_probes_neutral_total") else 0
                    if name == "llmslo_trusted":
                        self.note("trusted", value)
                    if name == "llmslo_send_lag_seconds_bucket":
                        lags[float(labels["le"])] = value
                    if value and not self.baseline_s and labels.get("phase") == "provisional":
                        self.baseline_s = time.monotonic() - self.began
                elif labels.get("target") == "faulty" and name in (
                    "llmslo_probes_total",
                    "llmslo_probe_failures_total",
                ):
                    self.note(f"faulty {name} {labels.get('reason', '')}", value)
        self.note("sent", sent)
        self.lags.append((time.monotonic() - self.began, lags))

    def look(self) -> None:
        """Pages for people; the due times of the steady target are taken from the API."""
        for path in PAGES:
            get(self.daemon.url + path)
        probes = json.loads(get(self.daemon.url + "/api/v1/probes?limit=200&target=steady"))["data"]
        found = [probe["stamps_ns"]["intended"] for probe in probes]
        self.intended_ns.update(found)
        self.scrape(Form.TEXT)
        self.counted.append((max(found), self.seen["sent"][-1][1]))

    def after(self, name: str, begin_s: float, end_s: float = math.inf) -> list[tuple[float, float]]:
        """What was seen of `name` in a span."""
        return [each for each in self.seen[name] if begin_s <= each[0] < end_s]

    def lag_ms(self, begin_s: float, end_s: float, q: float = 0.99) -> float:
        """A quantile of the send lag in a span, from the histogram, linear within its bucket."""
        inside = [lags for at, lags in self.lags if begin_s <= at < end_s and lags]
        counts = {le: inside[-1][le] - inside[0][le] for le in sorted(inside[-1])}
        rank, below, before = q * counts[math.inf], 0.0, 0.0
        for le, count in counts.items():
            if count >= rank:
                return 1e3 * (
                    before if le == math.inf else before + (le - before) * (rank - below) / max(count - below, 1)
                )
            below, before = count, le
        return math.nan


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""  # closed meanwhile


def minutes(seen: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """(middle of a minute in hours, median) of each minute."""
    found = itertools.groupby(seen, key=lambda each: int(each[0] // 60))
    return [((minute + 0.5) / 60, statistics.median(value for _, value in group)) for minute, group in found]


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of Theil and Sen: value per hour."""
    pairs = itertools.combinations(points, 2)
    return statistics.median((b - a) / (t - s) for (s, a), (t, b) in pairs)


def schedule(watched: Watched) -> dict[str, float]:
    """How far due times are from a grid of constant intervals, and how many of the grid's were counted between two looks."""
    period_ns = 1e9 / RATE
    first, *later = sorted(watched.intended_ns)
    off = max(abs((at - first) - round((at - first) / period_ns) * period_ns) for at in later)
    (first_ns, before), (last_ns, after) = watched.counted[0], watched.counted[-1]
    return {"due": round((last_ns - first_ns) / period_ns), "counted": after - before, "off_grid_ms": off / 1e6}


def told_faults() -> Iterator[str]:
    """The mock's flags: a fault after the other, with as long a pause, for a day."""
    for turn in range(86_400 // (2 * FAULT_S)):
        fault, begin = FAULTS[turn % len(FAULTS)], 2 * FAULT_S * turn
        yield from ("--fault", f"{fault}@{begin}s-{begin + FAULT_S}s")


@contextlib.contextmanager
def running() -> Iterator[Watched]:
    """Two mocks and the daemon."""
    with tempfile.TemporaryDirectory(prefix="prober-soak-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "hook").mkdir()
        (folder / "hook/sitecustomize.py").write_text(HOOK)
        steady = stack.enter_context(Mock(folder / "steady.log", "--seed", 1))
        faulty = stack.enter_context(Mock(folder / "faulty.log", "--seed", 2, *told_faults()))
        os.environ.update(PYTHONPATH=str(folder / "hook"), SOAK_TOLD=str(folder / "told"), POD_NAME="soak")
        config = CONFIG.format(steady=steady.url, faulty=faulty.url, rate=RATE, faulty_rate=FAULTY_RATE)
        daemon = stack.enter_context(Daemon(folder, config, "--storage.path", folder / "store"))
        yield Watched(daemon, folder / "told")
        if code := daemon.stop():
            raise RuntimeError(f"the daemon ended with {code}: {(folder / 'log').read_text()[-2000:]}")


def soak(watched: Watched, whole_s: float, warm_s: float) -> None:
    """Scrape, view and read for so long."""
    forms = itertools.cycle((Form.TEXT, Form.PROTOBUF))
    viewed = reloaded = 0.0
    censused = False
    for tick in range(int(whole_s / TICK_S) + 1):
        at_s = tick * TICK_S
        time.sleep(max(0.0, watched.began + at_s - time.monotonic()))
        watched.scrape(next(forms))
        if at_s - reloaded >= RELOAD_EVERY_S:
            reloaded = at_s
            watched.daemon.process.send_signal(signal.SIGHUP)
        if at_s - viewed >= PAGE_EVERY_S:
            viewed = at_s
            watched.look()
            last = {
                name: round(values[-1][1], 2) for name, values in watched.seen.items() if not name.startswith("faulty")
            }
            part(f"{at_s:g} s", last)
        watched.read(census=at_s >= warm_s and not censused)
        censused = at_s >= warm_s
    watched.look()
    watched.read(census=True)


def figures(watched: Watched, whole_s: float, warm_s: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(goals, what they were made of)."""
    rss = minutes(watched.after("rss_mb", warm_s))
    span_s = (whole_s - warm_s) / 3
    early, late = (warm_s, warm_s + span_s), (whole_s - span_s, math.inf)
    times = schedule(watched)
    lags = {name: watched.lag_ms(*span) for name, span in (("early", early), ("late", late))}
    means = {
        name: [statistics.mean(value for _, value in watched.after(name, *span)) for span in (early, late)]
        for name in ("tasks", "sockets", "fds", "threads", "blocks")
    }
    values = [value for _, value in rss]
    grown = watched.census[-1] - watched.census[0]
    goals = [
        goal("RSS, slope after warm-up", slope(rss), 2.0, "MB/h"),
        goal("RSS, highest minus lowest minute after warm-up", max(values) - min(values), 2.0, "MB"),
        goal("due times off their grid, the worst", times["off_grid_ms"], 0.001, "ms"),
        goal(
            "due times that were not counted, or counted twice",
            abs(times["due"] - times["counted"]),
            IN_FLIGHT,
            "probes",
        ),
        goal("send lag p99, last third minus first", lags["late"] - lags["early"], 1.0, "ms"),
        *(
            goal(f"{name}, mean of the last third minus the first", means[name][1] - means[name][0], 1.0, name)
            for name in ("tasks", "sockets", "fds", "threads")
        ),
    ]
    trusted = [value for _, value in watched.seen["trusted"]]
    return goals, {
        "hours": whole_s / 3600,
        "warm_up_s": warm_s,
        "baseline_learnt_s": watched.baseline_s,
        "rss_minutes_mb": [round(value, 2) for _, value in minutes(watched.seen["rss_mb"])],
        "anonymous_minutes_mb": [round(value, 2) for _, value in minutes(watched.seen["anonymous_mb"])],
        "anonymous_slope_mb_per_hour": round(slope(minutes(watched.after("anonymous_mb", warm_s))), 3),
        "schedule": times,
        "send_lag_p99_ms": {name: round(value, 3) for name, value in lags.items()},
        "means_first_and_last_third": {name: [round(value, 2) for value in pair] for name, pair in means.items()},
        "highest": {
            name: max(value for _, value in watched.after(name, warm_s)) for name in ("tasks", "sockets", "fds")
        },
        "trusted_share": round(sum(trusted) / len(trusted), 4),
        "faulty": {name.split()[-1]: seen[-1][1] for name, seen in watched.seen.items() if name.startswith("faulty")},
        "more_objects": grown.most_common(12),
        "probes_a_second": RATE + FAULTY_RATE,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--warm-up-minutes", type=float, default=WARM_S / 60)
    asked = parser.parse_args()
    whole_s, warm_s = asked.hours * 3600, asked.warm_up_minutes * 60
    with running() as watched:
        soak(watched, whole_s, warm_s)
    goals, raw = figures(watched, whole_s, warm_s)
    show("soak", goals, **raw)


if __name__ == "__main__":
    main()
