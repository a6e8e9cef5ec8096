"""The headroom gauge of the daemon against engines and productions written apart from it: is it right, narrow, and never friendly?

    python -m bench.headroom_independent [--scenes] [--held-out] [--mode adaptive] [--processes N] [--rows FILE] [--only N,N]

The whole daemon runs in virtual time, with sweeps of the default kind, over HTTP in memory: of a target in production
(`bench.independent.production`), or in the scenes of `bench.independent.headroom_scenes`. The gauge is read six minutes after each of
three sweeps, and five minutes after production has doubled or changed; and once a minute, to see that it is on the right side of zero,
and shows no room where there is none. Even numbers are for development, odd ones are held out. Two cases of each half are played
without an engine's page too: there no figure is expected, and a figure that is given counts.
"""

import argparse
import asyncio
import json
import logging
import os
import tempfile
import uuid
from collections.abc import Sequence
from multiprocessing import Pool
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from bench.independent.engine_server import EngineServer
from bench.independent.headroom_scenes import scenes
from bench.independent.production import CASES, Scene, doubling, load, mean_tokens, stream
from bench.report import goal, part, show
from tests.serving import serving
from tests.virtual import VirtualLoop
from tests.virtual_daemon import MIDNIGHT, Daemon

HOST, PORT = "192.0.2.1", 8000
LEAD_S = 300.0  # of production before the daemon starts
SWEEP_MINUTES, SWEEP_WITHIN_S = (4, 21, 38), 650.0
SCRAPE_EVERY_S, MINUTE_S, AFTER_SWEEP_S = 15, 60.0, 360.0
WINDOW_S = AFTER_CHANGE_S = 300.0  # of the demand
TROUBLE_S = 1_500.0  # how long the gauge is watched after a change of the engine
RESTART_S = 60.0
PROBES_PER_S = 0.05
BOUNDS = ("lower", "estimate", "upper")
ABSENT = 1.0  # error of a figure that is not given
NEAR_ZERO, FRIENDLY = 0.05, 0.1
BUSY = (0.6, 0.85)  # use at which the width matters most
ENDED, VERDICTS = "llmslo_sweep_last_end_timestamp_seconds", "llmslo_sweeps_total"
FIGURES = ("found", "between")  # verdicts of sweeps that give an interval
HEADROOM, USERS = "llmslo_headroom_ratio", "llmslo_users_headroom_ratio"
SHOWN = ("llmslo_demand", "llmslo_capacity_requests")  # beside the gauge, for whoever looks for the cause of an error
# Goals of a reading: error, width.
READINGS = {0: ("after 1 sweep", 0.06, 0.3), 2: ("after 3 sweeps", 0.06, 0.2), 3: ("doubled or changed", 0.08, 0.35)}
SEED = 7
WITHOUT_PAGE = 2  # cases of each half, beside their run with the page
GRID_STEP, GRID_STAGE_S, LEAST_KNEE_PER_S = 1.1, 60.0, 2.0
Figure = Sequence[float | None]  # lower, estimate, upper
Row = dict[str, Any]


def configuration(scene: Scene, has_page: bool, mode: str) -> str:
    """The daemon's configuration, as a user writes it for this service."""

    def lognormal(median_tokens: float, sigma: float, most: int, least: int) -> str:
        return f"{{lognormal: {{median: {round(median_tokens)}, sigma: {sigma:.4g}, min: {least}, max: {most}}}}}"

    case = scene.phases[0].case
    probe, (lengths,) = case.probe, case.probe.modes
    minutes, signals = ",".join(map(str, SWEEP_MINUTES)), ", ".join(case.signals)
    slos = "\n".join(
        f"  {slo.signal}: {{signal: {slo.signal}, threshold: {slo.threshold_s * 1e3:g}ms, objective: {100 - 100 * slo.allowed:g}%}}"
        for slo in case.objectives
    )
    page = f"interval: 5s, slos: [{signals}]" if scene.has_users_slos else "interval: 5s"
    return f"""
defaults: {{rate: {PROBES_PER_S}/s, warmup: 0, timeouts: {{total: 10m}}}}
slos:
{slos}
workloads:
  own:
    prompt_tokens: {lognormal(lengths.prompt, lengths.prompt_sigma, probe.max_prompt, 4)}
    output_tokens: {lognormal(lengths.output, lengths.output_sigma, probe.max_output, 1)}
targets:
  - name: t
    url: 'http://{HOST}:{PORT}'
    metrics: {{{page if has_page else "url: none"}}}
    probes: [{{workload: own, slos: [{signals}]}}]
    sweep: {{schedule: '{minutes} 0 * * *', spread: 0s, min_gap: 5m, mode: {mode}}}
"""


def gauge(samples: dict[str, float], name: str = HEADROOM) -> tuple[float | None, ...]:
    """(lower, estimate, upper) of a series of the target; None: absent."""
    return tuple(samples.get(f'{name}{{target="t",bound="{bound}"}}') for bound in BOUNDS)


class Play:
    """A scene with the daemon, and what was read in it."""

    def __init__(self, scene: Scene, daemon: Daemon, server: EngineServer) -> None:
        self._scene, self._daemon, self._server = scene, daemon, server
        self._at_s = self._changed_s = 0.0
        self._phase = scene.phases[0]
        self._tokens: dict[float, int] = {}
        self.sweeps: list[Row] = []
        self.readings: list[Row] = []
        self.minutes: list[Row] = []

    async def through(self) -> None:
        """All sweeps, readings and phases."""
        for minute in SWEEP_MINUTES:
            self._begin_phases()
            await self._sweep(MINUTE_S * minute)
            await self._until(self._at_s + AFTER_SWEEP_S)
            await self._read()
        if self._begin_phases():
            await self._until(self._at_s + AFTER_CHANGE_S)
            await self._read()
            if self._phase.change:
                await self._until(self._at_s + TROUBLE_S - AFTER_CHANGE_S)

    def _begin_phases(self) -> bool:
        """Begin the phases that come after the readings so far. Returns whether there are any."""
        begun = [phase for phase in self._scene.phases if phase.after == len(self.readings)]
        for phase in begun:
            server, case = self._server, phase.case
            server.most_per_s = phase.rate_limit_per_s
            if phase.change == "restart":
                server.restart(case.engine(SEED + phase.after), RESTART_S)
            elif phase.change:
                server.engine.drain_worker(case.structure.workers)
            if phase.after and phase.rate_limit_per_s == self._phase.rate_limit_per_s:
                self._changed_s = self._at_s
                server.replace_others(
                    stream(case.production, case.arrivals, phase.per_s, case.number, SEED + phase.after)
                )
            self._phase = phase
        return bool(begun)

    async def _until(self, to_s: float) -> None:
        while self._at_s < to_s:
            self._at_s = min(to_s, (self._at_s // MINUTE_S + 1) * MINUTE_S)
            await self._daemon.until(self._at_s)
            if self._at_s % MINUTE_S == 0:
                self._tokens[self._at_s] = self._server.tokens_of_others
                row = self._figures(await self._daemon.scrape())
                self.minutes.append(row | {"minute": self._at_s / 60, "since_change_s": self._at_s - self._changed_s})

    def _figures(self, samples: dict[str, float]) -> Row:
        phase = self._phase
        return {
            "truth": round(phase.free, 3),
            "users_truth": round(phase.free_of_users, 3),
            "gauge": gauge(samples),
            "users": gauge(samples, USERS),
        }

    async def _read(self) -> None:
        """The gauge now, and how many tokens came in its five minutes, relative to the mean in the long run."""
        samples = await self._daemon.scrape()
        since_s = min((at_s for at_s in self._tokens if at_s >= self._at_s - WINDOW_S), default=self._at_s)
        usual = (self._at_s - since_s) * self._phase.per_s * mean_tokens(self._phase.case.production)
        self.readings.append(
            self._figures(samples)
            | {
                "came": round((self._server.tokens_of_others - self._tokens.get(since_s, 0)) / max(1.0, usual), 3),
                "seen": {name: value for name, value in samples.items() if name.startswith(SHOWN)},
            }
        )

    async def _sweep(self, due_s: float) -> None:
        """Wait until the sweep of this time has ended, but not for ever."""
        await self._until(due_s)
        sent, before = self._server.served, verdicts(await self._daemon.scrape())
        ended: Row = {}
        while not ended and self._at_s < due_s + SWEEP_WITHIN_S:
            await self._until(self._at_s + SCRAPE_EVERY_S)
            samples = await self._daemon.scrape()
            reasons = [name for name, at_s in samples.items() if name.startswith(ENDED) and at_s > MIDNIGHT + due_s]
            if reasons:
                ended = {
                    "reason": reasons[0].partition("reason=")[2].strip('"}'),
                    "verdict": verdict(before, verdicts(samples)),
                }
        self.sweeps.append(
            {
                "requests": self._server.served - sent,
                "seconds": self._at_s - due_s,
                "knee_per_s": round(self._phase.truth.limit_per_s - self._phase.per_s, 3),
                **ended,
            }
        )


def verdicts(samples: dict[str, float]) -> dict[str, float]:
    """Sweeps so far by verdict."""
    return {
        name.partition("verdict=")[2].strip('"}'): count for name, count in samples.items() if name.startswith(VERDICTS)
    }


def verdict(before: dict[str, float], after: dict[str, float]) -> str | None:
    """The verdict that was counted between."""
    return next((name for name, count in after.items() if count > before.get(name, 0.0)), None)


async def played(scene: Scene, has_page: bool, mode: str, folder: Path) -> Row:
    """Readings of the daemon in one scene."""
    first = scene.phases[0]
    production = stream(first.case.production, first.case.arrivals, first.per_s, first.case.number, SEED)
    server = EngineServer(first.case.engine(SEED), production, LEAD_S)
    async with serving(server.app(), PORT, HOST):
        daemon = Daemon(folder, configuration(scene, has_page, mode))
        async with daemon.running():
            play = Play(scene, daemon, server)
            await play.through()
    return {"sweeps": play.sweeps, "readings": play.readings, "minutes": play.minutes}


def figures(task: tuple[Scene, bool, str]) -> Row:
    """All figures of a scene."""
    scene, has_page, mode = task
    began_s = sum(os.times()[:4])  # with the processes of the estimates
    os.environ["POD_NAME"] = "virtual"  # the schedules of the probes follow from it, those of sweeps from their ids
    ids = Random(scene.name)
    uuid.uuid4 = lambda: uuid.UUID(int=ids.getrandbits(128))
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=VirtualLoop) as runner:
        os.environ["TMPDIR"] = tempfile.tempdir = folder  # locks against other sweeps of this address on this machine
        row = runner.run(played(scene, has_page, mode, Path(folder)))
    first = scene.phases[0]
    return {
        "case": scene.name,
        "group": scene.group,
        "page": has_page,
        "use": round(first.per_s / first.truth.limit_per_s, 3),
        "bursty": first.case.arrivals.variation > 0,
        "limits": [(phase.truth.limit_per_s, phase.truth.users_limit_per_s) for phase in scene.phases],
        **row,
        "cpu_s": round(sum(os.times()[:4]) - began_s, 1),
    }


def goals_of(title: str, readings: Sequence[Row], most_error: float, most_width: float) -> list[Row]:
    """Goals for figures that should be there."""
    errors = [abs(row["gauge"][1] - row["truth"]) if row["gauge"][1] is not None else ABSENT for row in readings]
    intervals = [(row["truth"], row["gauge"][0], row["gauge"][2]) for row in readings if None not in row["gauge"]]
    results = [
        goal(f"{title}: error, median of {len(errors)}", median(errors), most_error, "share"),
        goal(f"{title}: without an interval", 1 - len(intervals) / len(readings), 0.1, "share"),
    ]
    if intervals:
        covered = sum(lower <= truth <= upper for truth, lower, upper in intervals) / len(intervals)
        coverage = goal(f"{title}: 90% interval holds the truth ({len(intervals)})", covered, 0.95, "share")
        results.append(coverage | {"goal": [0.85, 0.95], "met": 0.85 <= covered <= 0.95})
    for which, widths in (
        ("median", [upper - lower for _, lower, upper in intervals]),
        ("median at 60 to 85% use", [u - low for truth, low, u in intervals if BUSY[0] <= 1 - truth <= BUSY[1]]),
    ):
        if widths:
            results.append(
                goal(f"{title}: width of the interval, {which} of {len(widths)}", median(widths), most_width, "share")
            )
    return results


def signs(title: str, readings: Sequence[Row]) -> list[Row]:
    """Goals for the sign of the free share."""
    known = [(row["truth"], row["gauge"]) for row in readings if row["gauge"][1] is not None]
    if not known:
        return []
    clear = [(truth, estimate) for truth, (_, estimate, _) in known if abs(truth) >= NEAR_ZERO]
    wrong = sum(estimate * truth < 0 for truth, estimate in clear) / max(1, len(clear))
    opposite = sum(
        (truth > 0 and upper is not None and upper < 0) or (truth < 0 and lower is not None and lower > 0)
        for truth, (lower, _, upper) in known
    ) / len(known)
    return [
        goal(
            f"{title}: wrong sign of the estimate, truth 5 points or more from 0 ({len(clear)})", wrong, 0.02, "share"
        ),
        goal(f"{title}: interval on the wrong side of 0 ({len(known)})", opposite, 0.02, "share"),
    ]


def is_friendly(group: str, minute: Row) -> bool:
    """The gauge shows room that is not there: where an engine has become smaller 10 points too much, else 10 where there is none.

    Of two gauges the smaller counts. In the first minute after a change nothing can be known, and where only the demand has changed
    in the first five.
    """
    known = [figure[1] for figure in (minute["gauge"], minute["users"]) if figure[1] is not None]
    if not known:
        return False
    shown: float = min(known)
    if group == "engine smaller":
        is_watched = MINUTE_S <= minute["since_change_s"] <= TROUBLE_S
        return is_watched and shown > float(minute["truth"]) + FRIENDLY
    truth = min(minute["truth"], minute["users_truth"]) if group == "users" else minute["truth"]
    return bool(minute["since_change_s"] >= AFTER_CHANGE_S and truth < 0 and shown > FRIENDLY)


def is_limit(minute: Row) -> bool:
    """The gauge takes a rate limit for the capacity: its upper bound is 10 points below the truth."""
    upper = minute["gauge"][2]
    return upper is not None and upper < float(minute["truth"]) - FRIENDLY


def harm(sweep: Row) -> float | None:
    """Requests of a sweep ÷ those of a grid from 1/s to the knee; None: the grid has too few steps."""
    rate, requests = 1.0, 0.0
    while rate <= sweep["knee_per_s"]:
        requests += GRID_STAGE_S * rate
        rate *= GRID_STEP
    return sweep["requests"] / requests if sweep["knee_per_s"] >= LEAST_KNEE_PER_S else None


def goals_of_group(group: str, rows: Sequence[Row]) -> list[Row]:
    """Goals for the rows of a group, all with a page."""
    results: list[Row] = []
    if group in ("cases", "traffic"):
        for at, (moment, *goals) in READINGS.items():
            if readings := [row["readings"][at] for row in rows if len(row["readings"]) > at]:
                results += goals_of(f"{group}, {moment}", readings, *goals) + signs(f"{group}, {moment}", readings)
        settled = [m for row in rows for m in row["minutes"] if m["since_change_s"] >= AFTER_CHANGE_S]
        results += signs(f"{group}, every minute", settled)
        sweeps = [sweep for row in rows for sweep in row["sweeps"] if sweep["knee_per_s"] > 0]
        if sweeps:
            none = 1 - sum(sweep.get("verdict") in FIGURES for sweep in sweeps) / len(sweeps)
            results.append(goal(f"{group}: sweeps without a figure, of {len(sweeps)} with room", none, 0.05, "share"))
        if ratios := [ratio for sweep in sweeps if (ratio := harm(sweep)) is not None]:
            results.append(goal(f"{group}: requests of a sweep ÷ those of a grid, median", median(ratios), 0.12, ""))
    for title, is_wrong in [("friendly", lambda minute: is_friendly(group, minute))] + (
        [("a limit taken for the capacity", is_limit)] if group == "rate limit" else []
    ):
        wrong = [row["case"] for row in rows if any(map(is_wrong, row["minutes"]))]
        results.append(goal(f"{group}: {title}, of {len(rows)}", len(wrong), 0, "") | {"cases": wrong})
    return results


def goals(rows: Sequence[Row]) -> list[Row]:
    """Goals of each group, and of runs without a page."""
    results = []
    for group in dict.fromkeys(row["group"] for row in rows):
        results += goals_of_group(group, [row for row in rows if row["group"] == group and row["page"]])
    blind = [reading for row in rows if not row["page"] for reading in row["readings"]]
    if blind:
        false = sum(
            (lower is not None and lower > row["truth"]) or (upper is not None and upper < row["truth"])
            for row in blind
            for lower, _, upper in [row["gauge"]]
        )
        results.append(goal(f"without a page: intervals that miss the truth, of {len(blind)}", false, 0, ""))
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", action="store_true", help="play the scenes instead of the cases")
    parser.add_argument("--held-out", action="store_true", help="those that were not developed on")
    parser.add_argument("--mode", choices=("gentle", "adaptive"), default="gentle", help="of the sweeps")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--rows", type=Path, help="write the figures of each here, a line each")
    parser.add_argument("--only", help="numbers of cases or scenes, separated by commas")
    options = parser.parse_args()
    numbers = [int(number) for number in options.only.split(",")] if options.only else range(10 * CASES)
    half = [number for number in numbers if number % 2 == options.held_out]
    chosen = scenes(half) if options.scenes else [doubling(*case) for case in load(half)]
    tasks = [(scene, True, options.mode) for scene in chosen]
    if not options.scenes:
        tasks += [(scene, False, options.mode) for scene in chosen[:WITHOUT_PAGE]]
    rows: list[Row] = []
    with Pool(options.processes, maxtasksperchild=1) as pool:
        for row in pool.imap(figures, tasks, chunksize=1):
            part("case", {name: row[name] for name in ("case", "page", "cpu_s")})
            rows.append(row)
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    show(
        "headroom_independent",
        goals(rows),
        cases=len(rows),
        half="held out" if options.held_out else "development",
        mode=options.mode,
        rows=[{name: value for name, value in row.items() if name != "minutes"} for row in rows],
    )


if __name__ == "__main__":
    main()
