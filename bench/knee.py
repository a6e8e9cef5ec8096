"""Sweeps against engines whose knee is known: how near, how sure, how cheap, how gentle? Beside them the usual grid.

    python -m bench.knee [--engines N] [--processes N]     `python -m bench.worlds` makes bench/knees.json, the truth

Each engine (`bench.worlds`) is swept by the same machine as in production (`prober.features.capacity.sweep`), driven in virtual time
beside its background load, three times: with every background request known (“telemetry seen”), with the page's counters only,
and without a page. All have the same random numbers. Then a gentle sweep, a sweep with a fault in its middle, and the grid: steps
of 10% from 1/s, 60 s each, until the empirical p99 of a step breaks the threshold; its estimate is the last step that held.
Without a page nobody knows the load that was there: estimate and truth are then of the load added.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from math import exp, log
from multiprocessing import Pool
from pathlib import Path
from random import Random
from statistics import median
from time import process_time
from typing import Any

from bench.report import goal, percentile, show
from bench.worlds import SHARE, knees, restored, share_at
from prober.features.capacity.actions import Estimate, Finished
from prober.features.capacity.estimate import estimate_capacity
from prober.features.capacity.sweep import PAGE_S
from prober.features.capacity.sweep_plan import Plan
from prober.measure.objective import Slo
from prober.results.capacity import Capacity
from prober.simulation.faults import Crash, Fault, KvLost, Slow
from tests.features.capacity.simulated_sweep import (
    CLOCK_S,
    Driven,
    Driver,
    SimulatedTarget,
    Telemetry,
    breaches,
    longest_run_s,
    within,
)

SEED = 11
AFTER_S = 60.0
SHARP, FLAT = 10.0, 5.0  # local slopes


def plan(world: SimulatedTarget, mode: str = "adaptive") -> Plan:
    """The default one, with the workload's lengths."""
    rng = Random(f"lengths {world.seed}")
    slo = Slo("ttft", "ttft", world.threshold_s, Decimal(1) - Decimal(str(SHARE)), 3_600.0)
    lengths = tuple(world.own.draw(rng) for _ in range(30_000))
    return Plan((slo,), mode=mode, lengths=lengths)  # type: ignore[arg-type]


def swept(known: dict[str, Any], telemetry: Telemetry, mode: str = "adaptive") -> dict[str, Any]:
    """One sweep and what it says, beside the truth."""
    world = restored(known)
    driven = Driver(world, plan(world, mode), telemetry, SEED).run()
    added = world.others_per_s if telemetry == "none" else 0.0
    knee = known["knee"] - added
    order = driven.orders[-1][1]
    found: dict[str, Any] = {"reason": getattr(order, "reason", None), "requests": len(driven.own)}
    found["seconds"] = round(driven.ended_s - driven.began_s, 1)
    if isinstance(order, Estimate):
        began = process_time()
        answer = estimate_capacity(order.record, effort=0.4 if mode == "gentle" else 1.0)
        found["cpu_s"] = round(process_time() - began, 1)
        found |= _said(answer.capacities[0], known, knee, added)
        at = answer.knees[0]
        found["slope"], found["chance"] = (round(at.slope, 2), round(at.error, 4)) if at else (None, None)
        found["fit_error"] = round(answer.fit.error, 3) if answer.fit else None
    return found | _harm(world, driven)


def _said(capacity: Capacity, known: dict[str, Any], knee: float, added: float) -> dict[str, Any]:
    if capacity.estimate is None or capacity.lower is None or capacity.upper is None:
        return {"verdict": capacity.verdict}
    return {
        "verdict": capacity.verdict,
        "fit": capacity.fit,
        "estimate": round(capacity.estimate, 3),
        "error": round(log(capacity.estimate / knee), 4),
        "covered": capacity.lower <= knee <= capacity.upper,
        "width": round(log(capacity.upper / capacity.lower), 3),
        "share": round(share_at(known, capacity.estimate + added), 5),
    }


def _harm(world: SimulatedTarget, driven: Driven) -> dict[str, Any]:
    """Breaches of others during the sweep and a minute after it, beside the same others without it."""
    until_s = driven.ended_s + AFTER_S
    swept = within(driven.others, driven.began_s, until_s)
    alone = within(unswept(world, until_s), driven.began_s, until_s)
    count = sum(breaches(each, world.threshold_s) for each in swept)
    without = sum(breaches(each, world.threshold_s) for each in alone)
    return {
        "harmed": count - without,
        "others": len(swept),
        "run_s": round(longest_run_s(swept, world.threshold_s), 3),
        "run_without_s": round(longest_run_s(alone, world.threshold_s), 3),
    }


def unswept(world: SimulatedTarget, until_s: float) -> list[Any]:
    """The background alone, up to then and a little more."""
    driver = Driver(world, plan(world), "none", SEED)
    driver.advance(until_s + 10 * world.threshold_s)
    return driver.others


def grid(known: dict[str, Any]) -> dict[str, Any]:
    """10% steps of 60 s, the empirical p99 of each."""
    world = restored(known)
    driver = Driver(world, plan(world), "none", SEED)
    began_s, rate, held = driver.now, 1.0, None
    rng = Random(f"grid {world.seed}")
    while True:
        start_s, first = driver.now, len(driver.own)
        at_s = start_s + rng.expovariate(rate)
        while at_s < start_s + 60.0:
            driver.advance(at_s)
            driver.send(at_s)
            at_s += rng.expovariate(rate)
        driver.advance(start_s + 60.0)
        late = [driver.now - each.request.arrival_s for each in driver.own[first:] if each.ttft_s is None]
        ttfts = sorted([each.ttft_s for each in driver.own[first:] if each.ttft_s is not None] + late)
        if ttfts and percentile(ttfts, 0.99) > world.threshold_s:
            break
        held = rate
        rate *= 1.1
    ended_s = driver.now
    for each in driver.open:
        driver.engine.cancel(each.truth)
    driver.advance(ended_s + AFTER_S)
    made = Driven(driver.sweep, [], driver.others, driver.own, began_s, ended_s)
    estimate = (held or rate / 1.1) + world.others_per_s
    error = log(estimate / known["knee"])
    return {"requests": len(driver.own), "seconds": ended_s - began_s, "error": round(error, 4)} | _harm(world, made)


def faulty(known: dict[str, Any]) -> dict[str, Any]:
    """A fault in mid-sweep: from the first evidence that a guard can see to the end of the sending."""
    world = restored(known)
    rng = Random(f"fault {world.seed}")
    clean = Driver(world, plan(world), "counters", SEED).run()
    at_s = clean.began_s + rng.uniform(0.4, 0.8) * (clean.ended_s - clean.began_s)
    blocks = world.parameters.kv_blocks
    fault: Fault = Slow(6.0, at_s)
    if world.seed % 3:
        fault = Crash(at_s, at_s + 5.0) if world.seed % 3 == 1 else KvLost(round(blocks * 0.9), at_s)
    watched = Watched(world, plan(world), "counters", SEED, [fault])
    driven = watched.run()
    order = driven.orders[-1][1]
    stopped = isinstance(order, Estimate | Finished)
    seen_s = watched.evidence_s
    return {
        "fault": type(fault).__name__,
        "reason": getattr(order, "reason", None),
        "stopped": stopped,
        "lag_s": None if seen_s is None else round(driven.ended_s - seen_s, 3),
        "after_fault_s": round(driven.ended_s - at_s, 2),
    }


class Watched(Driver):
    """A driver beside which somebody watches the engine itself, a hundred times a second, for what a guard could see: a tenth of a
    stage lost (two at least), a TTFT of three times the threshold, four of the last eight late, a full cache, a queue of more
    than 1.4 thresholds. Cache and queue for half a second: what is over before the page is read again, no guard can see.
    """

    evidence_s: float | None = None
    full_s: float | None = None  # since when cache or queue are over their limit

    def advance(self, at_s: float) -> None:
        while self.now + 0.01 < at_s and self.sweep is not None:
            super().advance(self.now + 0.01)
            self._watch()
        super().advance(at_s)

    def _watch(self) -> None:
        if self.evidence_s is not None or not self.sweep.stages or self.sweep.stages[-1].phase == "warm_up":
            return
        threshold_s, now = self.target.threshold_s, self.now
        began_s = self.sweep.stages[-1].began_s - CLOCK_S
        recent = [each for each in self.own[-400:] if each.request.arrival_s >= self.sweep.stages[1].began_s - CLOCK_S]
        lost = sum(
            each.end is not None and each.end.value == "lost" for each in recent if each.request.arrival_s >= began_s
        )
        sent = sum(each.request.arrival_s >= began_s for each in recent)
        ages = [
            (each.first_token_s or now) - each.request.arrival_s
            for each in recent
            if each.end is None or each.first_token_s
        ]
        known = [
            age > threshold_s
            for each, age in ((each, (each.first_token_s or now) - each.request.arrival_s) for each in recent)
            if age > threshold_s or each.first_token_s is not None
        ]
        state = self.engine.state
        rate = self.sweep.stages[-1].rate_per_s + self.target.others_per_s
        full = state.kv_usage_ratio > 0.98 or state.waiting > max(4.0, 1.4 * threshold_s * rate)
        self.full_s = (self.full_s or now) if full else None
        if (lost > 1 and lost > 0.1 * sent) or max(ages, default=0.0) > 3 * threshold_s or sum(known[-8:]) >= 4:
            self.evidence_s = now
        elif self.full_s is not None and now - self.full_s >= PAGE_S:
            self.evidence_s = self.full_s


def engine(known: dict[str, Any]) -> dict[str, Any]:
    """Everything about one engine."""
    return {
        "seed": known["seed"],
        "kind": known["kind"],
        "knee": known["knee"],
        "slope": known["slope"],
        "arrivals": swept(known, "arrivals"),
        "counters": swept(known, "counters"),
        "none": swept(known, "none"),
        "gentle": swept(known, "counters", "gentle"),
        "grid": grid(known),
        "fault": faulty(known),
    }


def at_least(name: str, value: float, least: float, unit: str) -> dict[str, Any]:
    """A goal that is met from `least` up."""
    return goal(name, value, least, unit) | {"met": value >= least, "at": "least"}


def between(name: str, value: float, low: float, high: float, unit: str) -> dict[str, Any]:
    """A goal that is met between two bounds."""
    return goal(name, value, high, unit) | {"goal": [low, high], "met": low <= value <= high}


def errors(rows: Sequence[dict[str, Any]], name: str) -> list[float]:
    """|estimate ÷ truth − 1|; an engine without an estimate counts as 1."""
    return sorted(abs(exp(row[name]["error"]) - 1) if "error" in row[name] else 1.0 for row in rows)


def goals(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those of the specification."""
    found = []
    for name, title, mid, far in (
        ("arrivals", "telemetry seen", 0.04, 0.12),
        ("counters", "background by counters", 0.06, 0.20),
        ("none", "no page", 0.12, 0.30),
    ):
        sizes = errors(rows, name)
        found.append(goal(f"error, {title}, median", median(sizes), mid, "share"))
        found.append(goal(f"error, {title}, p90", percentile(sizes, 0.9), far, "share"))
    kinds: dict[str, Callable[[float], bool]] = {
        "flat": lambda slope: slope < FLAT,
        "mid": lambda slope: FLAT <= slope < SHARP,
        "sharp": lambda slope: slope >= SHARP,
    }
    for name, title in (("arrivals", "telemetry seen"), ("counters", "counters"), ("none", "no page")):
        for kind, of in kinds.items():
            said = [row[name]["covered"] for row in rows if of(row["slope"]) and "covered" in row[name]]
            if said:
                found.append(
                    between(
                        f"coverage of 90%, {kind} ({len(said)}), {title}", sum(said) / len(said), 0.85, 0.95, "share"
                    )
                )
    for name, title in (("arrivals", "telemetry seen"), ("counters", "counters")):
        inside = [0.005 <= row[name].get("share", 0.0) <= 0.02 for row in rows]
        found.append(at_least(f"true breach share within 0.5–2%, {title}", sum(inside) / len(inside), 0.8, "share"))
    found.append(
        goal(
            "requests ÷ grid's, median",
            median(r["counters"]["requests"] / r["grid"]["requests"] for r in rows),
            0.1,
            "",
        )
    )
    harmed, gridded = sum(r["counters"]["harmed"] for r in rows), sum(r["grid"]["harmed"] for r in rows)
    found.append(goal("harmed ÷ grid's, all engines", harmed / max(1, gridded), 0.5, ""))
    shares = [max(0, r["counters"]["harmed"]) / max(1, r["counters"]["others"]) for r in rows]
    found.append(goal("harmed share of others, median", median(shares), 0.01, "share"))
    runs = sorted(r["counters"]["run_s"] for r in rows)
    found.append(goal("run of neighbouring breaches, longest", runs[-1], 5.0, "s"))
    found.append(goal("run of neighbouring breaches, p90", percentile(runs, 0.9), 1.5, "s"))
    lags = [r["fault"]["lag_s"] for r in rows if r["fault"]["lag_s"] is not None]
    found.append(goal(f"stop after the first evidence, longest of {len(lags)}", max(lags, default=0.0), 1.0, "s"))
    return found


def summary(rows: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """The other figures of a way to sweep."""
    sizes = errors(rows, name)
    of = [row[name] for row in rows]
    signed = [each["error"] for each in of if "error" in each]
    reasons = [str(each.get("reason")) for each in of]
    return {
        "error_median": round(median(sizes), 4),
        "error_p90": round(percentile(sizes, 0.9), 4),
        "bias_median": round(median(signed), 4) if signed else None,
        "covered": round(sum(each["covered"] for each in of if "covered" in each) / max(1, len(signed)), 3),
        "width_median": round(median(each["width"] for each in of if "width" in each), 3) if "width" in of[0] else None,
        "requests_median": median(each["requests"] for each in of),
        "seconds_median": median(each["seconds"] for each in of),
        "harmed": sum(each["harmed"] for each in of),
        "model": sum(each.get("fit") == "model" for each in of),
        "reasons": {each: reasons.count(each) for each in sorted(set(reasons))},
        "cpu_s_median": median(each.get("cpu_s", 0.0) for each in of),
        "cpu_s_most": max(each.get("cpu_s", 0.0) for each in of),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", type=int, default=200, help="the first so many of those whose knee is known")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--rows", type=Path, help="keep each engine's figures here; those that are there are not run again"
    )
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if options.rows and options.rows.exists():
        rows = [json.loads(line) for line in options.rows.read_text().splitlines()]
    have = {row["seed"] for row in rows}
    known = [each for each in knees()[: options.engines] if each["seed"] not in have]
    with Pool(options.processes) as pool:
        for row in pool.imap_unordered(engine, known, chunksize=1):
            rows.append(row)
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    rows.sort(key=lambda row: int(row["seed"]))
    ways = ("arrivals", "counters", "none", "gentle", "grid")
    show("knee", goals(rows), engines=len(rows), ways={name: summary(rows, name) for name in ways}, rows=rows)


if __name__ == "__main__":
    main()
