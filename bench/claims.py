"""Claims of sweeps without evidence: that a rate holds on engines that never meet their SLO, and load of others on idle engines.

    python -m bench.claims [--processes N] [--rows FILE]

Engines of `bench.independent`, in virtual time. For the first claim the threshold of
TTFT is one that 3%, 10% or 50% of the requests miss on the unloaded engine, where 1% may; with the engine's page and without. For
the second nobody else uses the engine, and its page is up to 10 s old; beside it the same engines with load of others.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from multiprocessing import Pool
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np

from bench.independent.kinds import KINDS
from bench.independent.sweeps import LEAD_S, READ_LEAD_S, SweepDriver, Telemetry
from bench.independent.sweeps import plan as plan_of
from bench.independent.worlds import Simulation, World, load
from bench.report import goal, part, show
from prober.config.sweep import LimitsSpec
from prober.features.capacity.actions import Estimate, Finished
from prober.features.capacity.estimate import estimate_capacity
from prober.measure.engine_signals import EngineSignals
from prober.results.capacity import Capacity
from tests.features.capacity.simulated_sweep import changed

SEED = 23
SWEEPS = 50  # of each claim
MISSED = (0.03, 0.1, 0.5)  # shares of the requests on the unloaded engine
UNLOADED_PER_S, UNLOADED_REQUESTS = 0.01, 2_000
NOBODY_PER_S = 1e-9
PAGE_AGES_S = (0.0, 0.5, 3.0, 10.0)
SHORT_S = 60.0  # of the sweeps for the second claim


class Case(NamedTuple):
    """A sweep. missed: share, None: the load of others is asked for"""

    world: World
    missed: float | None
    has_page: bool
    page_age_s: float = 0.0
    is_idle: bool = False


def cases() -> list[Case]:
    """All sweeps: engines in turn, so that each meets several thresholds and ages."""
    worlds = [world for world in load(None, KINDS) if not world.is_void]
    never = [
        Case(world, missed, (number + place) % 2 == 0)
        for place, missed in enumerate(MISSED)
        for number, world in enumerate(worlds)
    ]
    ages = [Case(world, None, has_page=True, page_age_s=age_s) for world, age_s in product(worlds, PAGE_AGES_S)]
    Random(SEED).shuffle(ages)
    shared = ages[:SWEEPS]
    return [*never[:SWEEPS], *(case._replace(is_idle=True) for case in shared), *shared]


class OldPage:
    """A page that is made anew every `age_s`. page: made now; now_s: the time"""

    def __init__(self, page: Callable[[], EngineSignals], now_s: Callable[[], float], age_s: float) -> None:
        self._page, self._now_s, self._age_s = page, now_s, age_s
        self._made: tuple[float, EngineSignals] | None = None

    def __call__(self) -> EngineSignals:
        if self._made is None or self._now_s() - self._made[0] >= self._age_s:
            self._made = self._now_s(), self._page()
        return self._made[1]


def unmet(case: Case) -> dict[str, Any]:
    """Verdict of a sweep of an engine that never meets its SLO."""
    assert case.missed is not None
    telemetry: Telemetry = "counters" if case.has_page else "none"
    ttft_s = Simulation(case.world.scene, None).ttft_s(UNLOADED_PER_S, 0.0, UNLOADED_REQUESTS, SEED)
    world = replace(case.world, threshold_s=float(np.quantile(ttft_s, 1 - case.missed)))
    driver = SweepDriver(world, telemetry, SEED)
    for action in driver.run(*plan_of(world, None)):
        if isinstance(action, Estimate):
            assert driver.sweep is not None
            driver.sweep.estimated(estimate_capacity(action.record).capacities)
    assert isinstance(action, Finished)
    (capacity,) = action.capacities or (Capacity("ttft", "not_enough_data"),)
    return {
        "verdict": action.verdict,
        "reason": action.reason,
        "fit": capacity.fit,
        "estimate": capacity.estimate,
        "lower": capacity.lower,
        "requests": sum(stage.sent for stage in action.stages),
    }


def others(case: Case) -> dict[str, Any]:
    """Load of others that a short sweep states, beside the true one."""
    limits = LimitsSpec(time=SHORT_S)
    world = replace(case.world, background_per_s=NOBODY_PER_S) if case.is_idle else case.world
    driver = SweepDriver(world, "counters", SEED)
    page = OldPage(driver.engine.page, lambda: driver.now_s, case.page_age_s)
    with patch.object(driver.engine, "page", page):
        spec, lengths = plan_of(world, None)
        for action in driver.run(changed(spec, limits=limits), lengths):
            if isinstance(action, Estimate) and driver.sweep is not None:
                driver.sweep.estimated(())
    arrivals_s, until_s = [at_s for at_s, _ in driver.others], driver.ended_s
    assert isinstance(action, Finished)
    from_s = LEAD_S - READ_LEAD_S
    return {
        "least": action.others.least_per_s if action.others else None,
        "most": action.others.most_per_s if action.others else None,
        "true": round(sum(from_s < at_s <= until_s for at_s in arrivals_s) / (until_s - from_s), 4),
        "stages_with_load": sum(bool(stage.other_per_s) for stage in action.stages),
        "seconds": round(until_s - from_s, 1),
    }


def figures(case: Case) -> dict[str, Any]:
    """A case with its result."""
    answer = others(case) if case.missed is None else unmet(case)
    return {
        "engine": case.world.name,
        "missed": case.missed,
        "has_page": case.has_page,
        "page_age_s": case.page_age_s,
        "is_idle": case.is_idle,
    } | answer


def goals(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """No claim without evidence; and the load of others that there is within its bounds, and seen."""
    never = [row for row in rows if row["missed"] is not None]
    held = sum(row["verdict"] in ("found", "not_reached") or row["lower"] is not None for row in never)
    idle = [row for row in rows if row["missed"] is None and row["is_idle"]]
    used = [row for row in rows if row["missed"] is None and not row["is_idle"]]
    claimed = sum(bool(row["least"]) or row["stages_with_load"] > 0 for row in idle)
    outside = sum(not row["least"] * 0.98 <= row["true"] <= row["most"] * 1.02 for row in used)
    return [
        goal(f"'holds' of engines that never meet their SLO, of {len(never)} sweeps", held, 0, ""),
        goal(f"load of others on idle engines, of {len(idle)} sweeps", claimed, 0, ""),
        goal(f"true load of others outside its bounds, of {len(used)} sweeps", outside, 0, ""),
        goal(f"load of others not seen, of {len(used)} sweeps", sum(not row["least"] for row in used), 5, ""),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rows", type=Path, help="write the figures of each sweep here")
    options = parser.parse_args()
    with Pool(options.processes) as pool:
        rows = [part("sweep", row) for row in pool.imap_unordered(figures, cases(), chunksize=1)]
    if options.rows:
        options.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))
    never = [row for row in rows if row["missed"] is not None]
    verdicts = {
        f"missed by {missed:.0%}": {
            verdict: sum(row["missed"] == missed and row["verdict"] == verdict for row in never)
            for verdict in sorted({row["verdict"] for row in never})
        }
        for missed in MISSED
    }
    show("claims", goals(rows), verdicts=verdicts)


if __name__ == "__main__":
    main()
