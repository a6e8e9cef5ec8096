"""Sweeps against engines whose knee is known: how near, how sure, how cheap, how gentle? Beside them the usual grid.

    python -m bench.knee [--engines N] [--processes N]     `python -m bench.worlds` makes bench/knees.json, the truth

Each engine (`bench.worlds`) is swept by the same machine as in production (`prober.features.capacity.sweep`), driven in virtual time
beside its background load, twice: with the page's counters and without a page. Both have the same random numbers. Then a gentle
sweep, a sweep with a fault in its middle, and the grid: steps of 10% from 1/s, 60 s each, until the empirical p99 of a step breaks
the threshold; its estimate is the last step that held. Without a page nobody
knows the load that was there: estimate and truth are then of the load added.
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

from bench.report import goal, part, percentile, show
from bench.worlds import SHARE, knees, restored, share_at
from prober.config.sweep import SweepSpec
from prober.features.capacity.actions import Estimate, Finished
from prober.features.capacity.estimate import CapacityEstimate, estimate_capacity
from prober.features.capacity.sweep import PAGE_S
from prober.features.capacity.sweep_record import Record
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
    sweep_spec,
    within,
)

SEED = 11
AFTER_S = 60.0
SHARP, FLAT = 10.0, 5.0  # local slopes


def driver_of(target: SimulatedTarget, telemetry: Telemetry, mode: str = "adaptive") -> Driver:
    """Driver of the default sweep."""
    return Driver(target, *default_sweep(target, telemetry, mode))


def default_sweep(
    target: SimulatedTarget, telemetry: Telemetry, mode: str = "adaptive", faults: Sequence[Fault] = ()
) -> tuple[SweepSpec, Telemetry, int, Sequence[Fault], tuple[tuple[int, int], ...]]:
    """Arguments of a driver, with a sample of the workload's lengths."""
    rng = Random(f"lengths {target.seed}")
    slo = Slo("ttft", "ttft", target.threshold_s, Decimal(1) - Decimal(str(SHARE)), 3_600.0)
    lengths = tuple(target.own.draw(rng) for _ in range(30_000))
    return sweep_spec(slo, mode=mode), telemetry, SEED, faults, lengths


def swept(known: dict[str, Any], telemetry: Telemetry, mode: str = "adaptive") -> dict[str, Any]:
    """Figures of one sweep, beside the truth."""
    target = restored(known)
    estimates: list[CapacityEstimate] = []
    cpu_s: list[float] = []

    def estimated(record: Record) -> tuple[tuple[Capacity, ...], bool]:
        began_s = process_time()
        estimates.append(estimate_capacity(record, effort=0.4 if mode == "gentle" else 1.0))
        cpu_s.append(process_time() - began_s)
        fitted = estimates[-1].fit
        return estimates[-1].capacities, fitted is not None

    driven = driver_of(target, telemetry, mode).run(estimator=estimated)
    added = target.others_per_s if telemetry == "none" else 0.0
    knee = known["knee"] - added
    order = driven.orders[-1][1]
    figures: dict[str, Any] = {"reason": getattr(order, "reason", None), "requests": len(driven.own)}
    figures["seconds"] = round(driven.ended_s - driven.began_s, 1)
    figures["estimates"] = len(estimates)
    if estimates and isinstance(order, Finished):
        estimate = estimates[-1]
        figures["cpu_s"] = round(max(cpu_s), 1)
        figures |= _accuracy(order.capacities[0], known, knee, added)
        figures["fit_error"] = round(estimate.fit.error, 3) if estimate.fit else None
        figures["structure"] = estimate.fit.structure if estimate.fit else None
    return figures | _harm(target, driven)


def _accuracy(capacity: Capacity, known: dict[str, Any], knee: float, added: float) -> dict[str, Any]:
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


def _harm(target: SimulatedTarget, driven: Driven) -> dict[str, Any]:
    """Breaches of background requests during the sweep and a minute after it, and of the same requests without it."""
    until_s = driven.ended_s + AFTER_S
    swept = within(driven.others, driven.began_s, until_s)
    alone = within(unswept(target, until_s), driven.began_s, until_s)
    count = sum(breaches(truth, target.threshold_s) for truth in swept)
    without = sum(breaches(truth, target.threshold_s) for truth in alone)
    return {
        "harmed": count - without,
        "others": len(swept),
        "run_s": round(longest_run_s(swept, target.threshold_s), 3),
        "run_without_s": round(longest_run_s(alone, target.threshold_s), 3),
    }


def unswept(target: SimulatedTarget, until_s: float) -> list[Any]:
    """Background requests without a sweep, up to a little after `until_s`."""
    driver = driver_of(target, "none")
    driver.advance(until_s + 10 * target.threshold_s)
    return driver.others


def grid(known: dict[str, Any]) -> dict[str, Any]:
    """Figures of a grid: steps of 10% for 60 s each, until the empirical p99 breaches."""
    target = restored(known)
    driver = driver_of(target, "none")
    began_s, rate, held = driver.now, 1.0, None
    rng = Random(f"grid {target.seed}")
    while True:
        start_s, first = driver.now, len(driver.own)
        at_s = start_s + rng.expovariate(rate)
        while at_s < start_s + 60.0:
            driver.advance(at_s)
            driver.send(at_s)
            at_s += rng.expovariate(rate)
        driver.advance(start_s + 60.0)
        of_step = driver.own[first:]
        waiting_s = [driver.now - truth.request.arrival_s for truth in of_step if truth.ttft_s is None]
        ttfts = sorted([truth.ttft_s for truth in of_step if truth.ttft_s is not None] + waiting_s)
        if ttfts and percentile(ttfts, 0.99) > target.threshold_s:
            break
        held = rate
        rate *= 1.1
    ended_s = driver.now
    for request in driver.open:
        driver.engine.cancel(request.truth)
    driver.advance(ended_s + AFTER_S)
    driven = Driven(driver.sweep, [], driver.others, driver.own, began_s, ended_s)
    estimate = (held or rate / 1.1) + target.others_per_s
    error = log(estimate / known["knee"])
    return {"requests": len(driver.own), "seconds": ended_s - began_s, "error": round(error, 4)} | _harm(target, driven)


def faulty(known: dict[str, Any]) -> dict[str, Any]:
    """Figures of a fault in mid-sweep: time from the first evidence that a stop condition can see to the end of sending."""
    target = restored(known)
    rng = Random(f"fault {target.seed}")
    clean = driver_of(target, "counters").run()
    at_s = clean.began_s + rng.uniform(0.4, 0.8) * (clean.ended_s - clean.began_s)
    blocks = target.parameters.kv_blocks
    fault: Fault = Slow(6.0, at_s)
    if target.seed % 3:
        fault = Crash(at_s, at_s + 5.0) if target.seed % 3 == 1 else KvLost(round(blocks * 0.9), at_s)
    watched = Watched(target, *default_sweep(target, "counters", faults=[fault]))
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
    """Driver that checks the engine itself, a hundred times a second, for evidence that a stop condition can see.

    Evidence: a tenth of a stage's requests lost (two at least), a TTFT of three times the threshold, four of the last eight
    requests late, or for half a second a full cache or a queue of more than 1.4 thresholds (a shorter one ends between two
    readings of the page).
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
        first_s = self.sweep.stages[1].began_s - CLOCK_S
        recent = [truth for truth in self.own[-400:] if truth.request.arrival_s >= first_s]
        of_stage = [truth for truth in recent if truth.request.arrival_s >= began_s]
        lost = sum(truth.end is not None and truth.end.value == "lost" for truth in of_stage)
        sent = len(of_stage)
        # The engine states the end of a step when it begins: a first token counts once it has come.
        first_tokens_s = [
            at_s if (at_s := truth.first_token_s) is not None and at_s <= now else None for truth in recent
        ]
        waited_s = [
            (at_s, (at_s or now) - truth.request.arrival_s) for truth, at_s in zip(recent, first_tokens_s, strict=True)
        ]
        ages_s = [age_s for truth, (at_s, age_s) in zip(recent, waited_s, strict=True) if truth.end is None or at_s]
        known = [age_s > threshold_s for at_s, age_s in waited_s if age_s > threshold_s or at_s is not None]
        state = self.engine.state
        rate = self.sweep.stages[-1].rate_per_s + self.target.others_per_s
        full = state.kv_usage_ratio > 0.98 or state.waiting > max(4.0, 1.4 * threshold_s * rate)
        self.full_s = (self.full_s or now) if full else None
        if (lost > 1 and lost > 0.1 * sent) or max(ages_s, default=0.0) > 3 * threshold_s or sum(known[-8:]) >= 4:
            self.evidence_s = now
        elif self.full_s is not None and now - self.full_s >= PAGE_S:
            self.evidence_s = self.full_s


def engine(known: dict[str, Any]) -> dict[str, Any]:
    """All figures of one engine."""
    return {
        "seed": known["seed"],
        "kind": known["kind"],
        "knee": known["knee"],
        "slope": known["slope"],
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
    """Goals for accuracy, coverage, harm and stops."""
    results = []
    for name, title, mid, far in (
        ("counters", "background by counters", 0.06, 0.20),
        ("none", "no page", 0.12, 0.30),
    ):
        sizes = errors(rows, name)
        results.append(goal(f"error, {title}, median", median(sizes), mid, "share"))
        results.append(goal(f"error, {title}, p90", percentile(sizes, 0.9), far, "share"))
    kinds: dict[str, Callable[[float], bool]] = {
        "flat": lambda slope: slope < FLAT,
        "mid": lambda slope: FLAT <= slope < SHARP,
        "sharp": lambda slope: slope >= SHARP,
    }
    for name, title in (("counters", "counters"), ("none", "no page")):
        for kind, is_kind in kinds.items():
            covered = [row[name]["covered"] for row in rows if is_kind(row["slope"]) and "covered" in row[name]]
            if covered:
                results.append(
                    between(
                        f"coverage of 90%, {kind} ({len(covered)}), {title}",
                        sum(covered) / len(covered),
                        0.85,
                        0.95,
                        "share",
                    )
                )
    inside = [0.005 <= row["counters"].get("share", 0.0) <= 0.02 for row in rows]
    results.append(at_least("true breach share within 0.5–2%, counters", sum(inside) / len(inside), 0.8, "share"))
    results.append(
        goal(
            "requests ÷ grid's, median",
            median(r["counters"]["requests"] / r["grid"]["requests"] for r in rows),
            0.1,
            "",
        )
    )
    harmed, gridded = sum(r["counters"]["harmed"] for r in rows), sum(r["grid"]["harmed"] for r in rows)
    results.append(goal("harmed ÷ grid's, all engines", harmed / max(1, gridded), 0.5, ""))
    shares = [max(0, r["counters"]["harmed"]) / max(1, r["counters"]["others"]) for r in rows]
    results.append(goal("harmed share of others, median", median(shares), 0.01, "share"))
    runs = sorted(r["counters"]["run_s"] for r in rows)
    results.append(goal("run of neighbouring breaches, longest", runs[-1], 5.0, "s"))
    results.append(goal("run of neighbouring breaches, p90", percentile(runs, 0.9), 1.5, "s"))
    lags = [r["fault"]["lag_s"] for r in rows if r["fault"]["lag_s"] is not None]
    results.append(goal(f"stop after the first evidence, longest of {len(lags)}", max(lags, default=0.0), 1.0, "s"))
    return results


def summary(rows: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    """Further figures of a way to sweep."""
    sizes = errors(rows, name)
    figures = [row[name] for row in rows]
    signed = [of["error"] for of in figures if "error" in of]
    reasons = [str(of.get("reason")) for of in figures]
    return {
        "error_median": round(median(sizes), 4),
        "error_p90": round(percentile(sizes, 0.9), 4),
        "bias_median": round(median(signed), 4) if signed else None,
        "covered": round(sum(of["covered"] for of in figures if "covered" in of) / max(1, len(signed)), 3),
        "width_median": round(median(of["width"] for of in figures if "width" in of), 3)
        if "width" in figures[0]
        else None,
        "requests_median": median(of["requests"] for of in figures),
        "seconds_median": median(of["seconds"] for of in figures),
        "harmed": sum(of["harmed"] for of in figures),
        "model": sum(of.get("fit") == "model" for of in figures),
        "reasons": {reason: reasons.count(reason) for reason in sorted(set(reasons))},
        "cpu_s_median": median(of.get("cpu_s", 0.0) for of in figures),
        "cpu_s_most": max(of.get("cpu_s", 0.0) for of in figures),
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
    known = [engine_knee for engine_knee in knees()[: options.engines] if engine_knee["seed"] not in have]
    with Pool(options.processes) as pool:
        for row in pool.imap_unordered(engine, known, chunksize=1):
            rows.append(part(str(row["seed"]), row))
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    rows.sort(key=lambda row: int(row["seed"]))
    ways = ("counters", "none", "gentle", "grid")
    show("knee", goals(rows), engines=len(rows), ways={name: summary(rows, name) for name in ways}, rows=rows)


if __name__ == "__main__":
    main()
