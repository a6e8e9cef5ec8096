"""Sweeps of engines that were not made by the authors of the model that is fitted to them (`bench.independent`).

    python -m bench.knee_independent [--half second] [--held-out] [--traces FOLDER] [--processes N] [--rows FILE]

For each engine two sweeps, by what is known of the background (the page's counters, nothing), and a grid. A flat knee counts as
right where the true share at the answer is within half and double of the allowed one. The constants of fit and
interval were set on the tuning kinds; `--held-out` takes the other ones. `--half second`: kinds made later (`second_kinds`), split into
halves of their own, and engines of them that miss the threshold at every rate, where no figure is right.
"""

import argparse
import json
from collections.abc import Sequence
from math import log
from multiprocessing import Pool
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

from bench.independent import second_kinds
from bench.independent.kinds import HELD_OUT, TUNING
from bench.independent.sweeps import SweepDriver, Telemetry, grid, plan, undisturbed_harm
from bench.independent.worlds import ALLOWED, RECORD, SECOND_RECORD, World, load
from bench.report import goal, part, percentile, show
from prober.features.capacity.actions import Estimate, Finished
from prober.features.capacity.estimate import estimate_capacity
from prober.results.capacity import Capacity, words

SEED = 11
MIN_KNEE_PER_S = 1.5  # of a world: sweeps begin with one request per second
WAYS: tuple[tuple[Telemetry, str, float, float], ...] = (
    ("counters", "background by counters", 0.06, 0.18),
    ("none", "no page", 0.14, 0.35),
)


def swept(world: World, telemetry: Telemetry, traces: Path | None) -> dict[str, Any]:
    """Figures of one sweep, beside the truth."""
    driver = SweepDriver(world, telemetry, SEED, traces)
    figures: dict[str, Any] = {"cpu_s": 0.0}
    capacity = Capacity("ttft", "not_enough_data")
    for action in driver.run(*plan(world, traces)):
        figures["reason"] = getattr(action, "reason", None)
        if isinstance(action, Estimate):
            began_s = process_time()
            estimate = estimate_capacity(action.record)
            figures["cpu_s"] = round(max(figures["cpu_s"], process_time() - began_s), 1)
            if estimate.fit is not None:
                figures |= {"structure": estimate.fit.structure, "fit_error": round(estimate.fit.error, 3)}
            assert driver.sweep is not None
            driver.sweep.estimated(estimate.capacities)
        elif isinstance(action, Finished) and action.capacities:
            capacity = action.capacities[0]
    figures |= {"verdict": capacity.verdict, "fit": capacity.fit, "requests": driver.sent, "words": words((capacity,))}
    sizes = {signals.ranks for _, signals in driver.readings}
    figures["changed_size"] = len(sizes) > 1
    until_s = driver.ended_s + 60.0
    driver.advance(until_s)
    figures["harmed"] = driver.harm(until_s) - undisturbed_harm(world, SEED, traces, driver.began_s, until_s)
    return figures | accuracy(world, telemetry, capacity)


def accuracy(world: World, telemetry: Telemetry, capacity: Capacity) -> dict[str, Any]:
    """Figures of a capacity beside the truth; empty without an estimate and an interval."""
    if world.knee_per_s is None or capacity.estimate is None or capacity.lower is None or capacity.upper is None:
        return {}
    added = world.background_per_s if telemetry == "none" else 0.0
    knee = world.knee_per_s - added
    share = world.share_at(capacity.estimate + added)
    is_right = world.is_flat and ALLOWED / 2 <= share <= 2 * ALLOWED
    return {
        "estimate": round(capacity.estimate, 3),
        "error": 0.0 if is_right else round(abs(capacity.estimate / knee - 1), 4),
        "log_error": round(log(capacity.estimate / knee), 4),
        "covered": capacity.lower <= knee <= capacity.upper,
        "width": round(log(capacity.upper / capacity.lower), 3),
        "share": round(share, 5),
    }


def figures(task: tuple[World, Path | None]) -> dict[str, Any]:
    """All figures of a world."""
    world, traces = task
    requests, seconds, harmed = (0, 0.0, 0) if world.is_void else grid(world, SEED, traces)
    return {
        "world": world.name,
        "kind": world.scene.kind,
        "knee": world.knee_per_s,
        "flat": not world.is_void and world.is_flat,
        "missing": world.missing,
        "grid": {"requests": requests, "seconds": round(seconds), "harmed": harmed},
        **{telemetry: swept(world, telemetry, traces) for telemetry, *_ in WAYS},
    }


def goals(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Goals for error, coverage, requests and harm. A sweep without an estimate has an error of 1."""
    results = []
    known = [row for row in rows if row["knee"] is not None]
    for name, title, middle, far in WAYS:
        errors = [row[name].get("error", 1.0) for row in known]
        results.append(goal(f"error, {title}, median", median(errors), middle, "share"))
        results.append(goal(f"error, {title}, p90", percentile(errors, 0.9), far, "share"))
        covered = [row[name]["covered"] for row in known if "covered" in row[name]]
        if covered:
            share = sum(covered) / len(covered)
            result = goal(f"coverage of 90%, {title} ({len(covered)})", share, 0.95, "share")
            results.append(result | {"goal": [0.85, 0.95], "met": 0.85 <= share <= 0.95})
    counted = [row["counters"] for row in known]
    grids = [row["grid"] for row in known]
    ratios = [one["requests"] / other["requests"] for one, other in zip(counted, grids, strict=True)]
    harmed = sum(one["harmed"] for one in counted) / max(1, sum(other["harmed"] for other in grids))
    results.append(goal("requests ÷ grid's, median", median(ratios), 0.12, ""))
    results.append(goal("harmed ÷ grid's, all engines", harmed, 0.1, ""))
    cpu_s = max(row[name]["cpu_s"] for row in rows for name, *_ in WAYS)
    results.append(goal("CPU of an estimate, longest", cpu_s, 10.0, "s"))
    missing = [row for row in rows if row.get("missing")]
    for name, title, *_ in WAYS if missing else ():
        found = sum(row[name]["verdict"] == "found" for row in missing)
        results.append(goal(f"found where every rate misses, {title}, of {len(missing)}", found, 0, "engines"))
    changed = [row["counters"] for row in rows if row["counters"]["changed_size"]]
    if changed:
        found = sum(sweep["verdict"] == "found" for sweep in changed)
        results.append(goal(f"capacities of engines that changed their size, of {len(changed)}", found, 0, ""))
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=("first", "second"), default="first", help="kinds made at first, or later")
    parser.add_argument("--held-out", action="store_true", help="the kinds that were not tuned on")
    parser.add_argument("--traces", type=Path, help="folder of production traces, for the worlds that draw from them")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rows", type=Path, help="keep figures here; worlds that are there are not run again")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.rows and options.rows.exists():
        rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
    have = {row["world"] for row in rows}
    halves = (second_kinds.TUNING, second_kinds.HELD_OUT) if options.half == "second" else (TUNING, HELD_OUT)
    record = SECOND_RECORD if options.half == "second" else RECORD
    worlds = load(options.traces, halves[options.held_out], record)
    worlds = [world for world in worlds if world.knee_per_s is None or world.knee_per_s >= MIN_KNEE_PER_S]
    tasks = [(world, options.traces) for world in worlds if world.name not in have]
    with Pool(options.processes) as pool:
        for row in pool.imap_unordered(figures, tasks, chunksize=1):
            rows.append(part(str(row["world"]), row))
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    rows.sort(key=lambda row: str(row["world"]))
    kinds = "held out" if options.held_out else "tuning"
    show("knee_independent", goals(rows), engines=len(rows), half=options.half, kinds=kinds, rows=rows)


if __name__ == "__main__":
    main()
