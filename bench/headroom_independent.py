"""The headroom gauge of the daemon against engines and productions written apart from it: is it right, narrow, and sure of its sign?

    python -m bench.headroom_independent [--held-out] [--mode adaptive] [--processes N] [--rows FILE] [--only N,N]

The whole daemon runs in virtual time, with sweeps of the default kind of a target in production (`bench.independent.production`),
over HTTP in memory. The gauge is read from its metrics page six minutes after the third sweep; then production doubles, and five
minutes later it is read again. Cases with even numbers are for development, those with odd ones are held out. Two cases of each half
are played without an engine's page too: there no figure is expected, and a figure that is given counts.
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
from bench.independent.production import CASES, Case, Truth, load, mean_tokens, stream
from bench.report import goal, part, show
from tests.serving import serving
from tests.virtual import VirtualLoop
from tests.virtual_daemon import MIDNIGHT, Daemon

HOST, PORT = "192.0.2.1", 8000
LEAD_S = 300.0  # of production before the daemon starts
SWEEP_MINUTES, SWEEP_WITHIN_S = (4, 15, 26), 650.0
SCRAPE_EVERY_S, AFTER_SWEEP_S = 15, 360.0
WINDOW_S = AFTER_DOUBLING_S = 300.0  # of the demand
PROBES_PER_S = 0.05
BOUNDS = ("lower", "estimate", "upper")
ABSENT = 1.0  # error of a figure that is not given
NEAR_ZERO = 0.05
ENDED, VERDICTS = "llmslo_sweep_last_end_timestamp_seconds", "llmslo_sweeps_total"
ADDABLE = "llmslo_addable_requests_per_second"
SHOWN = ("llmslo_demand", "llmslo_capacity")  # beside the gauge, for whoever looks for the cause of an error
SEED = 7
WITHOUT_PAGE = 2  # cases of each half, beside their run with the page


def configuration(case: Case, has_page: bool, mode: str) -> str:
    """The daemon's configuration, as a user writes it for this service."""

    def lognormal(median_tokens: float, sigma: float, most: int, least: int) -> str:
        return f"{{lognormal: {{median: {median_tokens:.4g}, sigma: {sigma:.4g}, min: {least}, max: {most}}}}}"

    own, (lengths,) = case.own, case.own.modes
    minutes = ",".join(map(str, SWEEP_MINUTES))
    slos = "\n".join(
        f"  {slo.signal}: {{signal: {slo.signal}, threshold: {slo.threshold_s * 1e3:g}ms, objective: {100 - 100 * slo.allowed:g}%}}"
        for slo in case.objectives
    )
    return f"""
defaults: {{rate: {PROBES_PER_S}/s, warmup: 0}}
slos:
{slos}
workloads:
  own:
    prompt_tokens: {lognormal(lengths.prompt, lengths.prompt_sigma, own.max_prompt, 4)}
    output_tokens: {lognormal(lengths.output, lengths.output_sigma, own.max_output, 1)}
targets:
  - name: t
    url: 'http://{HOST}:{PORT}'
    metrics: {"{interval: 5s}" if has_page else "{url: none}"}
    probes: [{{workload: own, slos: [{", ".join(case.signals)}]}}]
    sweep: {{schedule: '{minutes} 0 * * *', spread: 0s, min_gap: 5m, after_change: false, workload: own, mode: {mode}}}
"""


def gauge(samples: dict[str, float], name: str = "llmslo_headroom_ratio") -> tuple[float | None, ...]:
    """(lower, estimate, upper) of a series of the target; None: absent."""
    units = ("", ',unit="requests"')
    series = [[f'{name}{{target="t"{unit},bound="{bound}"}}' for unit in units] for bound in BOUNDS]
    return tuple(next((samples[key] for key in keys if key in samples), None) for keys in series)


async def played(case: Case, truth: Truth, has_page: bool, mode: str, folder: Path) -> dict[str, Any]:
    """Readings of the daemon in one case, and how many tokens came in their five minutes, relative to the mean in the long run."""
    per_s = case.use * truth.limit_per_s
    server = EngineServer(case.engine(SEED), stream(case, per_s, SEED), LEAD_S)
    sweeps: list[dict[str, Any]] = []
    async with serving(server.app(), PORT, HOST):
        daemon = Daemon(folder, configuration(case, has_page, mode))
        async with daemon.running():
            samples: dict[str, float] = {}
            for minute in SWEEP_MINUTES:
                at_s, sent = 60.0 * minute, server.served
                ended: dict[str, Any] = {}
                while not ended and at_s < 60 * minute + SWEEP_WITHIN_S:
                    at_s += SCRAPE_EVERY_S
                    await daemon.until(at_s)
                    ended = sweep_end(await daemon.scrape(), MIDNIGHT + 60 * minute)
                await daemon.until(at_s + AFTER_SWEEP_S - WINDOW_S)
                tokens = server.tokens_of_others
                await daemon.until(at_s + AFTER_SWEEP_S)
                samples = await daemon.scrape()
                sweeps.append(
                    {"requests": server.served - sent, "seconds": at_s - 60 * minute, **ended, "gauge": gauge(samples)}
                )
            row: dict[str, Any] = {"sweeps": sweeps, "steady": gauge(samples), "addable": gauge(samples, ADDABLE)}
            row["seen"] = {name: value for name, value in samples.items() if name.startswith(SHOWN)}
            usual_tokens = WINDOW_S * per_s * mean_tokens(case.production)
            row["came"] = round((server.tokens_of_others - tokens) / usual_tokens, 3)
            at_s += AFTER_SWEEP_S
            tokens = server.tokens_of_others
            server.replace_others(stream(case, 2 * per_s, SEED + 1))
            await daemon.until(at_s + AFTER_DOUBLING_S)
            samples = await daemon.scrape()
            row["doubled"] = gauge(samples)
            row["came_doubled"] = round((server.tokens_of_others - tokens) / (2 * usual_tokens), 3)
            row["seen_doubled"] = {name: value for name, value in samples.items() if name.startswith(SHOWN)}
    return row


def sweep_end(samples: dict[str, float], since_s: float) -> dict[str, Any]:
    """Reason and verdicts so far of a sweep that ended after `since_s`; empty: there is none."""
    ends = [name for name, at_s in samples.items() if name.startswith(ENDED) and at_s > since_s]
    if not ends:
        return {}
    verdicts = {
        name.partition("verdict=")[2].strip('"}'): count for name, count in samples.items() if name.startswith(VERDICTS)
    }
    return {
        "reason": ends[0].partition("reason=")[2].strip('"}'),
        "verdicts": {name: count for name, count in verdicts.items() if count},
    }


def figures(task: tuple[Case, Truth, bool, str]) -> dict[str, Any]:
    """All figures of a case."""
    case, truth, has_page, mode = task
    began_s = sum(os.times()[:4])  # with the processes of the estimates
    os.environ["POD_NAME"] = "virtual"  # the schedules of the probes follow from it, those of sweeps from their ids
    ids = Random(case.name)
    uuid.uuid4 = lambda: uuid.UUID(int=ids.getrandbits(128))
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=VirtualLoop) as runner:
        os.environ["TMPDIR"] = tempfile.tempdir = folder  # locks against other sweeps of this address on this machine
        row = runner.run(played(case, truth, has_page, mode, Path(folder)))
    return {
        "case": case.name,
        "page": has_page,
        "use": case.use,
        "bursty": case.arrivals.variation > 0,
        "truth": {
            "steady": round(1 - case.use, 3),
            "doubled": round(1 - 2 * case.use, 3),
            "addable": truth.addable_per_s,
            "capacity": truth.capacity_per_s,
            "limit": truth.limit_per_s,
        },
        **row,
        "cpu_s": round(sum(os.times()[:4]) - began_s, 1),
    }


def goals_of(title: str, readings: Sequence[tuple[float, tuple[float | None, ...]]]) -> list[dict[str, Any]]:
    """Goals for figures that should be there. readings: (truth, (lower, estimate, upper)) of each case"""
    count = len(readings)
    errors = [ABSENT if figure[1] is None else abs(figure[1] - truth) for truth, figure in readings]
    intervals = [
        (truth, figure[0], figure[2])
        for truth, figure in readings
        if figure[0] is not None and figure[1] is not None and figure[2] is not None
    ]
    absent = 1 - len(intervals) / count
    results = [
        goal(f"{title}: error, median of {count}", median(errors), 0.1, "share"),
        goal(f"{title}: without an interval", absent, 0.1, "share"),
    ]
    if intervals:
        covered = sum(lower <= truth <= upper for truth, lower, upper in intervals) / len(intervals)
        coverage = goal(f"{title}: 90% interval holds the truth ({len(intervals)})", covered, 0.95, "share")
        results.append(coverage | {"goal": [0.85, 0.95], "met": 0.85 <= covered <= 0.95})
        widths = [upper - lower for _, lower, upper in intervals]
        results.append(goal(f"{title}: width of the interval, median", median(widths), 0.4, "share"))
    return results


def signs(title: str, readings: Sequence[tuple[float, tuple[float | None, ...]]]) -> list[dict[str, Any]]:
    """Goals for the sign of the free share."""
    known = [(truth, figure) for truth, figure in readings if figure[1] is not None]
    if not known:
        return []
    clear = [(truth, figure[1]) for truth, figure in known if abs(truth) >= NEAR_ZERO and figure[1] is not None]
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


def goals(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Goals for the gauge in steady production and after it has doubled, what can be added, and runs without a page."""
    results = []
    counted = [row for row in rows if row["page"]]
    for moment in ("steady", "doubled") if counted else ():
        readings = [(row["truth"][moment], row[moment]) for row in counted]
        results += goals_of(f"free share, {moment}", readings) + signs(f"free share, {moment}", readings)
    if counted:
        shares = [
            (
                row["truth"]["addable"] / row["truth"]["capacity"],
                tuple(None if value is None else value / row["truth"]["capacity"] for value in row["addable"]),
            )
            for row in counted
        ]
        results += goals_of("requests of the sweep's shape that can be added ÷ capacity", shares)
    blind = [(row["truth"][moment], row[moment]) for row in rows if not row["page"] for moment in ("steady", "doubled")]
    if blind:
        false = sum(
            (lower is not None and lower > truth) or (upper is not None and upper < truth)
            for truth, (lower, _, upper) in blind
        )
        results.append(goal(f"without a page: intervals that miss the truth, of {len(blind)}", false, 0, ""))
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held-out", action="store_true", help="the cases that were not developed on")
    parser.add_argument("--mode", choices=("gentle", "adaptive"), default="gentle", help="of the sweeps")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--rows", type=Path, help="write the figures of each case here, a line each")
    parser.add_argument("--only", help="numbers of cases, separated by commas")
    options = parser.parse_args()
    numbers = [int(number) for number in options.only.split(",")] if options.only else range(CASES)
    cases = load(number for number in numbers if number % 2 == options.held_out)
    tasks = [(case, truth, True, options.mode) for case, truth in cases]
    tasks += [(case, truth, False, options.mode) for case, truth in cases[:WITHOUT_PAGE]]
    rows: list[dict[str, Any]] = []
    with Pool(options.processes, maxtasksperchild=1) as pool:
        for row in pool.imap(figures, tasks, chunksize=1):
            rows.append(part("case", row))
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    show(
        "headroom_independent",
        goals(rows),
        cases=len(rows),
        half="held out" if options.held_out else "development",
        mode=options.mode,
        rows=rows,
    )


if __name__ == "__main__":
    main()
