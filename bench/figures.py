"""Default sweeps in virtual time: do they end with a figure, is it right, and what does it cost?

    python -m bench.figures [--part tuning|held-out] [--processes N] [--rows FILE]

Engines: one of each structure of `bench.independent` (half of the kinds are held out), a queue with 2, 8 and 64 slots as `prober mock
--slots` has it, and engines that miss the objective at every rate. Each is swept with its page and without one. The plan is that of
`prober sweep URL`, with the workload and the objective of the engine.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapreplace
from itertools import product
from math import inf
from multiprocessing import Pool
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, cast

import numpy as np

from bench.independent.engine import COMPLETE, IN_FLIGHT, Engine, Results
from bench.independent.kinds import HELD_OUT, TUNING
from bench.independent.sweeps import SweepDriver, Telemetry, grid, plan, undisturbed_harm
from bench.independent.worlds import ALLOWED, Simulation, World, load
from bench.report import goal, part, percentile, show
from prober.features.capacity.actions import Estimate, Finished
from prober.features.capacity.estimate import estimate_capacity
from prober.measure.engine_signals import EngineInfo, EngineSignals
from prober.measure.target_state import WarmUpLength
from prober.results.capacity import Capacity, words
from prober.workload.built_in import BUILT_IN
from prober.workload.workloads import sample_lengths
from tests.features.capacity.simulated_sweep import changed

SEED = 23
MAX_RATE_PER_S, WARM_UP_S = 50.0, 20.0  # the defaults of the command
MIN_KNEE_PER_S = 1.5
WAYS: tuple[Telemetry, ...] = ("counters", "none")
SLOTS = (2, 8, 64)
TTFT_S, GAP_S, SLOTS_THRESHOLD_S = 0.05, 0.01, 0.5  # of `prober mock`, and the command's default objective
# Shares of the requests of an idle engine that miss the threshold: each is more than the objective allows.
MISSED_SHARES = (0.02, 0.03, 0.06, 0.1, 0.3)


class SlotQueue:
    """Requests in order of arrival, served by so many slots, with the latencies of `prober mock`; the interface of `Engine`."""

    def __init__(self, slots: int, sigma: float, seed: int) -> None:
        """sigma: of the lognormal time until the first token, once a slot is free."""
        self._free_s, self._rng, self._sigma = [0.0] * slots, Random(seed), sigma
        self._rows: list[tuple[float, float, float, int, int]] = []  # start, first token, end, prompt, output tokens
        self.at_s = 0.0

    def submit(self, at_s: float, prompt: int, output: int, _: object = (), __: bool = False) -> int:
        """Number of the request."""
        start_s = max(at_s, self._free_s[0])
        first_s = start_s + TTFT_S * self._rng.lognormvariate(0.0, self._sigma)
        end_s = first_s + GAP_S * (output - 1)
        heapreplace(self._free_s, end_s)
        self._rows.append((start_s, first_s, end_s, prompt, output))
        return len(self._rows) - 1

    def advance(self, to_s: float) -> None:
        """Run until `to_s`."""
        self.at_s = to_s

    def cancel(self, number: int) -> None:
        """A cut request keeps its slot: nothing is measured after it."""

    def results(self, start: int = 0) -> Results:
        """Results of the requests from number `start` on."""
        rows = np.array(self._rows[start:]).reshape(-1, 5)
        status = np.where(rows[:, 2] <= self.at_s, COMPLETE, IN_FLIGHT).astype(np.int8)
        return Results(rows[:, 1], rows[:, 2], rows[:, 4].astype(np.int32), status)

    def token_times_s(self, number: int) -> Any:
        """Times of the tokens delivered by now."""
        _, first_s, _, _, output = self._rows[number]
        times_s = first_s + GAP_S * np.arange(output)
        return times_s[times_s <= self.at_s]

    def page(self) -> EngineSignals:
        """The page at this time."""
        waiting = sum(row[0] > self.at_s for row in self._rows[-5_000:])
        running = sum(row[0] <= self.at_s < row[2] for row in self._rows[-5_000:])
        ended = [row for row in self._rows if row[2] <= self.at_s]
        return EngineSignals(
            EngineInfo("vllm", "0.1"),
            ranks=1,
            requests_running=running,
            requests_waiting=waiting,
            kv_cache_usage_ratio_max=0.0,
            preemptions_total=0.0,
            prompt_tokens_total=float(sum(row[3] for row in ended)),
            generation_tokens_total=float(sum(row[4] for row in ended)),
            requests_finished_total=float(len(ended)),
            start_time_seconds=1.0,
        )


class ProbeLengths:
    """Lengths of the workload `probe`, and no background."""

    def lengths(self, rng: np.random.Generator, count: int, _: Path | None) -> Any:
        """Prompt and output tokens."""
        drawn = sample_lengths(BUILT_IN["probe"], Random(int(rng.integers(1 << 30))), count)
        return np.array(drawn).T

    def stream(self, *_: object) -> Iterator[tuple[float, int, int, list[int]]]:
        """No requests."""
        while True:
            yield inf, 1, 1, []


@dataclass(frozen=True)
class SlotScene:
    """Workloads of a queue with slots."""

    own: ProbeLengths = field(default_factory=ProbeLengths)
    background: ProbeLengths = field(default_factory=ProbeLengths)
    kind: str = "mock"


@dataclass(frozen=True)
class SlotWorld:
    """A queue with slots, as the driver takes it for a `World`. knee_per_s: None: it misses the objective at every rate"""

    slots: int
    threshold_s: float = SLOTS_THRESHOLD_S
    sigma: float = 0.0
    knee_per_s: float | None = None
    background_per_s: float = 0.0
    scene: SlotScene = field(default_factory=SlotScene)

    @property
    def name(self) -> str:
        """Slots and threshold."""
        return f"mock {self.slots} slots, {self.threshold_s:.3g} s"

    def engine(self, seed: int) -> Engine:
        """A new queue."""
        return cast("Engine", SlotQueue(self.slots, self.sigma, seed))

    def with_knee(self) -> "SlotWorld":
        """The world with its knee, by bisection of long runs."""
        low, high = 0.1, 40.0 * self.slots
        lengths = ProbeLengths().lengths(np.random.default_rng(1), 40_000, None).T
        while high / low > 1.005:
            middle, rng, at_s, queue = (low * high) ** 0.5, Random(5), 0.0, SlotQueue(self.slots, self.sigma, 6)
            arrivals_s = np.array([at_s := at_s + rng.expovariate(middle) for _ in lengths])
            for arrival_s, (prompt, output) in zip(arrivals_s, lengths, strict=True):
                queue.submit(float(arrival_s), int(prompt), int(output))
            missed = float(np.mean(queue.results().first_token_s - arrivals_s > self.threshold_s))
            low, high = (middle, high) if missed < ALLOWED else (low, middle)
        return replace(self, knee_per_s=low)


def worlds_of(part: str) -> list[tuple[str, World]]:
    """(group, engine): one of each kind, queues with slots, and engines that miss the objective at every rate."""
    kinds = {"tuning": TUNING, "held-out": HELD_OUT, "all": (*TUNING, *HELD_OUT)}[part]
    by_kind = {world.scene.kind: world for world in load(None, kinds) if (world.knee_per_s or 0.0) >= MIN_KNEE_PER_S}
    worlds = [("structure", world) for world in by_kind.values()]
    if part != "held-out":
        worlds += [("mock", cast("World", SlotWorld(slots).with_knee())) for slots in SLOTS]
    for place, world in enumerate(list(by_kind.values())[::2]):
        share = MISSED_SHARES[place % len(MISSED_SHARES)]
        idle_s = Simulation(world.scene, None).ttft_s(0.01, 0.0, 4_000, 1)
        missing = replace(world, threshold_s=float(np.nanquantile(idle_s, 1 - share)), knee_per_s=None)
        worlds.append(("missing", missing))
    for slots, share in product({"tuning": SLOTS[:1], "held-out": SLOTS[1:2], "all": SLOTS[:2]}[part], MISSED_SHARES):
        idle_s = TTFT_S * np.random.default_rng(slots).lognormal(0.0, 0.3, 4_000)
        missing_slots = SlotWorld(slots, float(np.quantile(idle_s, 1 - share)), 0.3)
        worlds.append(("missing", cast("World", missing_slots)))
    return worlds


def swept(world: World, telemetry: Telemetry) -> dict[str, Any]:
    """Figures of one sweep."""
    driver = SweepDriver(world, telemetry, SEED)
    spec, lengths = plan(world, None)
    finished = None
    for action in driver.run(changed(spec, max_rate=MAX_RATE_PER_S), lengths, WarmUpLength(None, WARM_UP_S)):
        if isinstance(action, Estimate):
            estimate = estimate_capacity(action.record)
            assert driver.sweep is not None
            driver.sweep.estimated(estimate.capacities)
        elif isinstance(action, Finished):
            finished = action
    assert finished is not None
    capacity = finished.capacities[0] if finished.capacities else Capacity("ttft", "not_enough_data")
    until_s = driver.ended_s + 60.0
    driver.advance(until_s)
    has_others = world.background_per_s > 0
    undisturbed = undisturbed_harm(world, SEED, None, driver.began_s, until_s) if has_others else 0
    added = world.background_per_s if telemetry == "none" else 0.0
    knee = None if world.knee_per_s is None else world.knee_per_s - added
    figures = {
        "verdict": capacity.verdict,
        "fit": capacity.fit,
        "reason": finished.reason,
        "words": words((capacity,)),
        "seconds": round(driver.ended_s - driver.began_s),
        "requests": driver.sent,
        "harmed": driver.harm(until_s) - undisturbed if has_others else 0,
        "interval": capacity.lower is not None and capacity.upper is not None,
    }
    if knee is not None and knee > MAX_RATE_PER_S:  # beyond what is sent: that the highest rate holds is the figure
        figures["interval"] = capacity.verdict == "not_reached" and (capacity.lower or 0.0) == MAX_RATE_PER_S
    if knee is not None and capacity.lower is not None and capacity.upper is not None:
        figures["covered"] = capacity.lower <= knee <= capacity.upper
        figures["width"] = round(capacity.upper / capacity.lower, 2)
        if capacity.estimate is not None:
            figures["error"] = round(capacity.estimate / knee - 1, 3)
    return figures


def figures(task: tuple[str, World]) -> dict[str, Any]:
    """All figures of an engine."""
    group, world = task
    row: dict[str, Any] = {"world": world.name, "group": group, "knee": world.knee_per_s}
    if group == "structure":
        requests, seconds, harmed = grid(world, SEED, None)
        row["grid"] = {"requests": requests, "seconds": round(seconds), "harmed": harmed}
    return row | {telemetry: swept(world, telemetry) for telemetry in WAYS}


def goals(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Goals for figures, their coverage, time, requests, harm, and false figures."""
    results = []
    for telemetry in WAYS:
        sweeps = [row[telemetry] for row in rows if row["knee"] is not None]
        of_grid = [(row[telemetry], row["grid"]) for row in rows if "grid" in row]
        missing = [row[telemetry] for row in rows if row["knee"] is None]
        without = sum(not sweep["interval"] for sweep in sweeps) / len(sweeps)
        results.append(goal(f"{telemetry}: sweeps without an interval, of {len(sweeps)}", without, 0.05, "share"))
        errors = [abs(sweep["error"]) for sweep in sweeps if "error" in sweep]
        results.append(goal(f"{telemetry}: error, median", median(errors), 0.14, "share"))
        results.append(goal(f"{telemetry}: error, p90", percentile(errors, 0.9), 0.35, "share"))
        covered = [sweep["covered"] for sweep in sweeps if "covered" in sweep]
        share = sum(covered) / len(covered)
        results.append(
            goal(f"{telemetry}: coverage of 90% ({len(covered)})", share, 0.95, "share")
            | {"goal": [0.85, 0.95], "met": share >= 0.85}
        )
        longest_s = max(sweep["seconds"] for sweep in sweeps)
        results.append(goal(f"{telemetry}: time of sending, longest", longest_s, 180.0, "s"))
        if of_grid:
            ratio = median(sweep["requests"] / other["requests"] for sweep, other in of_grid)
            results.append(goal(f"{telemetry}: requests ÷ grid's, median", ratio, 0.12, ""))
            harmed = [sum(figure["harmed"] for figure in column) for column in zip(*of_grid, strict=True)]
            results.append(goal(f"{telemetry}: harmed ÷ grid's", harmed[0] / max(1, harmed[1]), 0.15, ""))
        false = sum(sweep["verdict"] in ("found", "between", "not_reached") for sweep in missing) / len(missing)
        results.append(goal(f"{telemetry}: false figures, of {len(missing)} that miss", false, 0.05, "share"))
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("tuning", "held-out", "all"), default="all")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--rows", type=Path, help="write figures of each engine here, a line each")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with Pool(options.processes) as pool:
        for row in pool.imap_unordered(figures, worlds_of(options.part), chunksize=1):
            rows.append(part(str(row["world"]), row))
            if options.rows:
                with options.rows.open("a") as file:
                    file.write(json.dumps(row) + "\n")
    rows.sort(key=lambda row: str(row["world"]))
    show("figures", goals(rows), engines=len(rows), part=options.part, rows=rows)


if __name__ == "__main__":
    main()
