"""SIGKILL at random moments of a real daemon that probes fast, sweeps and freezes baselines: what it had told is there again.

Each life: the daemon starts on the store of those before it, is asked for a sweep, which ends or is ended, and its baseline,
primed to be some dozens of samples short of made, is made. A reader notes what page and API tell. It is killed at a moment drawn
uniformly from its life, and every fifth while it starts. The next life is held against the notes.
"""

import argparse
import contextlib
import json
import sqlite3
import tempfile
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from bench.report import goal, part, percentile, show
from prober.features.drift.detector import step
from prober.features.drift.serialization import dump
from prober.features.drift.state import Observation, Settings, new_state
from prober.storage.store import FILE_NAME, Store
from tests.faults.endpoint import Endpoint
from tests.processes import Program, fetch, free_port, get

RATE, LIFE_S, START_S, KILLS, LANES = 25, 10.0, 2.0, 200, 4
LIMIT = 60_000_000
PROBE_TOKENS = 24
READY_S = 300.0  # on a machine that is busy with other work
IN_FLIGHT = 100 * PROBE_TOKENS  # of requests that were not told of yet
UNSAVED = (
    2 * (RATE + 20) * PROBE_TOKENS
)  # of probes and a sweep in the second between two writes, and while one is under way
KEY = json.dumps(("one", "tiny", "ttft"))
CONFIG = """
defaults: {{rate: {rate}/s, warmup: 0, connect_lead: 100ms, max_in_flight: 100}}
slos: {{quick: {{signal: ttft, threshold: 500ms, objective: 90%}}}}
workloads: {{tiny: {{prompt_tokens: 20, output_tokens: 4}}, other: {{prompt_tokens: 20, output_tokens: 5}}}}
targets:
  - {{name: one, url: 'http://127.0.0.1:{port}', metrics: {{url: none}}, probes: [{{workload: tiny}}],
     budget: {{tokens_per_day: {limit}}}, sweep: {{workload: other, min_rate: 2/s, max_rate: 20/s, mode: gentle}}}}
"""


@dataclass
class Told:
    """What was told in a life. spent: (tokens told, tokens that the endpoint had been asked for), each time it was read.

    before: tokens that it had been asked for when the life began; found, sweeps: the latest results, when it was read first and last
    """

    before: float = 0.0
    ready_s: float | None = None
    found: list[str] = field(default_factory=list)
    sweeps: list[str] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    spent: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class Count:
    """Of all lives. over: (kills so far, tokens by which more is counted than was asked for), after each that told."""

    kills: int = 0
    before_ready: int = 0
    sweeps_told: int = 0
    sweeps_lost: int = 0
    baselines_told: int = 0
    baselines_lost: int = 0
    short: float = 0.0
    over: list[tuple[int, float]] = field(default_factory=list)
    damaged: int = 0
    faults: int = 0
    lost: list[str] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)


def tokens_asked(endpoint: Endpoint) -> float:
    """Of probes, which ask for 4 tokens, and of sweeps, which ask for 5 and are charged to the same budget."""
    return endpoint.requests[4] * PROBE_TOKENS + endpoint.requests[5] * (PROBE_TOKENS + 1)


class Reader:
    """One life, read from outside until its moment comes."""

    def __init__(self, folder: Path, endpoint: Endpoint, seed: int) -> None:
        self.rng, self.endpoint, self.told = Random(seed), endpoint, Told(tokens_asked(endpoint))
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.began = time.monotonic()
        words = ("--config.file", folder / "prober.yaml", "--web.listen-address", f"127.0.0.1:{port}")
        flags = ("--storage.path", folder / "store", "--web.enable-admin-api")
        self.daemon = Program(folder / "log", "run", *words, *flags)

    def live(self, start_s: float, life_s: float) -> Told:
        """Read what it tells, and kill it so long after it is ready; after `start_s`, if it is not ready by then."""
        ends_s = [self.rng.uniform(0.2, 1.0)]
        asked_s: float | None = None
        with self.daemon:
            until_s = start_s
            while (now_s := time.monotonic() - self.began) < until_s:
                with contextlib.suppress(OSError):
                    self.read()
                    if self.told.ready_s is None:
                        self.told.ready_s, until_s = now_s, now_s + life_s
                    if asked_s is None and fetch(self.url + "/api/v1/sweeps?target=one", "POST")[0] == 202:
                        asked_s = now_s
                    elif asked_s is not None and ends_s and now_s > asked_s + ends_s[0]:
                        ends_s.pop()
                        fetch(self.url + "/api/v1/sweeps?target=one", "DELETE")
                time.sleep(min(0.03, max(0.0, until_s - now_s)))
        return self.told

    def read(self) -> None:
        """Page and API, once."""
        was_asked = tokens_asked(self.endpoint)
        page = get(self.url + "/metrics")
        for line in page.splitlines():
            if line.startswith("llmslo_budget_remaining_ratio"):
                self.told.spent.append((LIMIT * (1 - float(line.rpartition(" ")[2])), was_asked))
            if (
                line.startswith("llmslo_drift_baseline_state")
                and 'signal="ttft"' in line
                and line.endswith((" 1", " 1.0"))
            ):
                self.told.phases.append(line.split('state="')[1].split('"')[0])
        found = json.loads(get(self.url + "/api/v1/sweeps"))["data"]
        self.told.sweeps = [str(each["id"]) for each in found]
        if self.told.ready_s is None:
            self.told.found = self.told.sweeps


def nearly() -> list[bytes]:
    """A detector so many samples short of its baseline as its place in the list, at the rate of the probes.

    Its samples are faster than any endpoint: what is slower is an alarm and keeps its baseline, what is faster gives it up.
    """
    state, rng, found = new_state(Settings(RATE)), Random(1), deque[bytes](maxlen=100)
    now_s, samples = time.time() - 6_000 / RATE, 0
    while state.baseline is None:
        if samples > 4_900:
            found.append(dump(state))
        state, _ = step(state, Observation(now_s + samples / RATE, rng.lognormvariate(-8, 0.3)))
        samples += 1
    return list(found)[::-1]


def prime(folder: Path, state: bytes) -> None:
    """Put this detector in the store in place of the one that has its baseline."""
    store = Store(str(folder / "store"))
    store.save("drift", [(KEY, state)], time.time())
    store.close()


def check(count: Count, before: Told, after: Told, *, primed: bool) -> None:
    """One life against the one before it."""
    if after.ready_s is None:
        return
    gone = set(before.sweeps) - set(after.found)
    count.sweeps_lost += len(gone)
    count.lost += [f"before kill {count.kills}: sweep {each} of {len(before.sweeps)}" for each in gone]
    if before.phases[-1:] == ["provisional"] and not primed and after.phases:
        count.baselines_told += 1
        if after.phases[0] != "provisional":
            count.baselines_lost += 1
            count.lost.append(f"before kill {count.kills}: a baseline, then {' '.join(after.phases)}")
    if after.spent:
        count.short = max(count.short, round(after.before - after.spent[0][0], 3))
        count.over.append((count.kills, after.spent[-1][0] - after.spent[-1][1]))


def lives(folder: Path, kills: int, seed: int, short: list[bytes]) -> Count:
    """So many of one daemon, one after another, in a folder of its own."""
    rng, count = Random(f"kill {seed}"), Count()
    last, primed = Told(), True
    (folder / "store").mkdir(parents=True)
    prime(folder, short[30])
    with Endpoint() as endpoint:
        (folder / "prober.yaml").write_text(CONFIG.format(port=endpoint.port, limit=LIMIT, rate=RATE))
        while count.kills < kills:
            start_s = rng.uniform(0.0, START_S) if count.kills % 5 == 4 else READY_S
            told = Reader(folder, endpoint, rng.getrandbits(32)).live(start_s, rng.uniform(0.0, LIFE_S))
            count.kills += 1
            count.before_ready += told.ready_s is None
            count.sweeps_told += len(set(told.sweeps) - set(last.sweeps))
            check(count, last, told, primed=primed)
            if told.ready_s is None:
                if start_s == READY_S:
                    raise RuntimeError(f"the daemon does not become ready: {(folder / 'log').read_text()[-2000:]}")
                continue  # what was told before is held against the next one that tells anything
            count.starts.append(told.ready_s)
            if not told.phases and not primed:  # killed before its first probe had ended: the next one is asked
                told.phases = last.phases
            else:
                primed = "provisional" in last.phases and "provisional" in told.phases
            if primed:
                prime(folder, short[rng.randrange(5, 60)])
            last = told
    count.damaged = sum("damaged" in path.name for path in (folder / "store").iterdir())
    connection = sqlite3.connect(folder / "store" / FILE_NAME)
    count.damaged += connection.execute("PRAGMA integrity_check").fetchone() != ("ok",)
    connection.close()
    count.faults = sum("Traceback" in line for line in (folder / "log").read_text().splitlines())
    return count


def main() -> None:
    """Kill, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=KILLS)
    kills, short = parser.parse_args().kills, nearly()
    with tempfile.TemporaryDirectory(prefix="prober-kill-") as name, ThreadPoolExecutor(LANES) as pool:
        share = [kills // LANES + (lane < kills % LANES) for lane in range(LANES)]
        lanes = [pool.submit(lives, Path(name) / str(lane), share[lane], lane, short) for lane in range(LANES)]
        counts = [part("lane", lane.result()) for lane in lanes]
    steps = [
        (tokens - before) / (kills - killed)
        for each in counts
        for (killed, before), (kills, tokens) in zip([(0, 0.0), *each.over], each.over, strict=False)
    ]
    starts = [start for each in counts for start in each.starts]
    show(
        "kill",
        [
            goal("sweep results told and lost", sum(each.sweeps_lost for each in counts), 0, "results"),
            goal("baselines told and lost", sum(each.baselines_lost for each in counts), 0, "baselines"),
            goal("tokens spent and not counted after a kill", max(each.short for each in counts), UNSAVED, "tokens"),
            goal(
                "tokens counted and not spent, by a kill",
                max(steps, default=0),
                IN_FLIGHT,
                "tokens",
            ),
            goal("stores damaged", sum(each.damaged for each in counts), 0, "stores"),
            goal("exceptions in the logs", sum(each.faults for each in counts), 0, "lines"),
        ],
        kills=sum(each.kills for each in counts),
        killed_while_starting=sum(each.before_ready for each in counts),
        lost=[each for count in counts for each in count.lost],
        sweeps_told=sum(each.sweeps_told for each in counts),
        baselines_held_against_the_next_life=sum(each.baselines_told for each in counts),
        start_to_page_s=round(percentile(starts, 0.5), 3),
    )


if __name__ == "__main__":
    main()
