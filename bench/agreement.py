"""A grid and a ramp of one engine: do they report the same throughput, goodput and cost at the rates that both visited?

    python -m bench.agreement [--kinds N] [--held-out]

Engines of `bench.independent`, in virtual time, each with its own requests. The ramp has the default
stages (4 s, steps of 15%), the grid every second of its rates for 60 s each. A figure is compared at a rate if both report one. The
truth is a run of five minutes at that rate: the share of the tokens asked for that it delivered after its first minute, times the
tokens that the rate asks for, so that the chance of arrivals and lengths has no part in it.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing import Pool
from statistics import fmean, median
from typing import Any
from unittest.mock import patch

from bench.independent.kinds import KINDS
from bench.independent.sweeps import Lengths, SweepDriver
from bench.independent.sweeps import plan as plan_of_world
from bench.independent.worlds import load
from bench.report import goal, part, percentile, show
from prober.config.sweep import FACTORS, WARM_UP, GuardSpec, SweepSpec
from prober.features.capacity.actions import Estimate, Finished
from prober.features.capacity.sweep_record import Stage
from prober.measure.objective import Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import WarmUpLength
from prober.measure.timeline import Timeline
from prober.probing import stop_conditions
from prober.results.delivery import Deliveries
from prober.results.result import Stage as StageResult
from prober.results.stage import stage_of
from tests.features.capacity.simulated_sweep import CLOCK_S, changed

RAMP_STEP, GRID_STEP = 1.15, 1.15**2
MAX_RATE_PER_S = 60.0
TRUE_S, SETTLED_S = 300.0, 60.0
MAX_DIFFERENCE = 0.05
FIGURES = ("tokens_per_s", "goodput_per_s", "cost")


@dataclass(frozen=True, slots=True)
class Swept:
    """A sweep that ran: its stages, and all requests with those that were cut."""

    stages: tuple[Stage, ...]
    probes: tuple[ProbeResult, ...]


class _Recorded(SweepDriver):
    """A driver that keeps the results, and cuts as the runner does."""

    probes: list[ProbeResult]

    def _result(self, own: Any, status: int) -> ProbeResult:
        result = super()._result(own, status)
        self.probes.append(result)
        return result

    def _cut(self) -> None:
        assert self.sweep is not None
        cut_ns = round((CLOCK_S + self.now_s) * 1e9)
        for own in self._open:
            cut = super()._result(own, 0)
            stamps = tuple(stamp for stamp in cut.timeline.content_ns if stamp <= cut_ns)
            timeline = Timeline(
                cut.timeline.intended_ns, first_ns=stamps[0] if stamps else None, content_ns=stamps, cut_ns=cut_ns
            )
            self.probes.append(replace(cut, outcome=Outcome.CANCELLED, timeline=timeline))
        super()._cut()


def sweep(world: Any, spec: SweepSpec, lengths: Lengths, seed: int, warm_up: WarmUpLength = WARM_UP) -> Swept:
    """A sweep of an engine."""
    driver = _Recorded(world, "counters", seed)
    driver.probes = []
    stages: tuple[Stage, ...] = ()
    for action in driver.run(spec, lengths, warm_up):
        if isinstance(action, Estimate):
            assert driver.sweep is not None
            driver.sweep.estimated(())
        elif isinstance(action, Finished):
            stages = action.stages
    return Swept(stages, tuple(driver.probes))


def reported(swept: Swept, slos: tuple[Slo, ...], lengths: Lengths) -> dict[float, StageResult]:
    """Stages of the result by rate."""
    mean_tokens = fmean(prompt for prompt, _ in lengths), fmean(output for _, output in lengths)
    spans = [
        (None if stage.phase == "warm_up" else stage.rate_per_s, round(stage.began_s * 1e9), round(stage.ended_s * 1e9))
        for stage in swept.stages
    ]
    delivered = Deliveries(swept.probes, slos, spans, mean_tokens)
    results = {}
    for stage, (_, begin_ns, end_ns) in zip(swept.stages, spans, strict=True):
        if stage.phase not in ("ramp", "grid"):
            continue
        own = [probe for probe in swept.probes if begin_ns <= probe.timeline.intended_ns < end_ns]
        results[round(stage.rate_per_s, 6)] = stage_of(
            *("", stage.rate_per_s, own),
            origin_ns=0,
            begin_ns=begin_ns,
            sending_s=(end_ns - begin_ns) / 1e9,
            slos=slos,
            delivered=delivered,
        )
    return results


def figures(stage: StageResult) -> dict[str, float | None]:
    """Output tokens/s, goodput, and dollars per million tokens for a GPU at a dollar per second."""
    tokens_per_s, prompt_per_s = stage.at_rate.output_tokens_per_s, stage.at_rate.prompt_tokens_per_s
    both = tokens_per_s + prompt_per_s if tokens_per_s is not None and prompt_per_s is not None else None
    return {
        "tokens_per_s": tokens_per_s,
        "goodput_per_s": stage.at_rate.good_per_s,
        "cost": 1e6 / both if both else None,
    }


def rows(world: Any, spec: SweepSpec, lengths: Lengths) -> list[dict[str, Any]]:
    """A row for each rate that grid and ramp visited."""
    rates = tuple(rate for k in range(60) if (rate := RAMP_STEP**k) <= MAX_RATE_PER_S)
    ramp_spec = changed(spec, mode="adaptive", max_rate=MAX_RATE_PER_S)
    grid_spec = changed(spec, mode="grid", rates=rates[::2])
    with patch.dict(FACTORS, adaptive=RAMP_STEP):
        ramp, grid = (
            reported(sweep(world, of, lengths, seed), spec.slos, lengths)
            for seed, of in ((1, ramp_spec), (2, grid_spec))
        )
    compared = []
    for rate in sorted(set(ramp) & set(grid)):
        of_ramp, of_grid = figures(ramp[rate]), figures(grid[rate])
        row: dict[str, Any] = {"engine": world.name, "rate_per_s": round(rate, 3), "ramp": of_ramp, "grid": of_grid}
        if of_ramp["tokens_per_s"] is not None or of_grid["tokens_per_s"] is not None:
            row["true_tokens_per_s"] = true_tokens_per_s(world, spec, lengths, rate)
        compared.append(row)
    return compared


def true_tokens_per_s(world: Any, spec: SweepSpec, lengths: Lengths, rate_per_s: float) -> float | None:
    """Output tokens per second that a long run at a rate delivers, with an objective that nothing breaches."""
    slo, guard = replace(spec.slos[0], threshold_s=1e6), GuardSpec(waiting=1e9).model_copy(update={"kv_cache": 2.0})
    long = changed(spec, slos=(slo,), mode="grid", rates=(rate_per_s,), step=TRUE_S, guard=guard, max_in_flight=10**6)
    with patch.object(stop_conditions, "_MAX_PREEMPTIONS", 1e9):
        swept = sweep(world, long, lengths, 3, WarmUpLength(0))
    begin_ns = round((swept.stages[-1].began_s + SETTLED_S) * 1e9)
    end_ns = round(swept.stages[-1].ended_s * 1e9)
    asked = sum(
        probe.requested_output_tokens for probe in swept.probes if begin_ns <= probe.timeline.intended_ns < end_ns
    )
    delivered = Deliveries(swept.probes).between(begin_ns, end_ns).output_tokens
    if not asked or delivered is None:
        return None
    return float(delivered / asked * rate_per_s) * fmean(output for _, output in lengths)


def rows_of(world: Any) -> list[dict[str, Any]]:
    """Rows of one engine."""
    return rows(world, *plan_of_world(world, None))


def goals(compared: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Largest differences between ramp and grid, and of each from the truth."""
    results = []
    for name in FIGURES:
        pairs = [(row["ramp"][name], row["grid"][name]) for row in compared]
        differences = [abs(ramp / grid - 1) for ramp, grid in pairs if ramp and grid]
        results.append(
            goal(f"ramp against grid, {name}, largest of {len(differences)}", max(differences), MAX_DIFFERENCE, "share")
        )
    for way in ("ramp", "grid"):
        errors = [
            abs(row[way]["tokens_per_s"] / row["true_tokens_per_s"] - 1)
            for row in compared
            if row[way]["tokens_per_s"] and row.get("true_tokens_per_s")
        ]
        for label, value in (("median", median(errors)), ("p95", percentile(errors, 0.95))):
            allowed = MAX_DIFFERENCE if label == "median" else 2 * MAX_DIFFERENCE
            results.append(
                goal(f"{way} against a long run, tokens_per_s, {label} of {len(errors)}", value, allowed, "share")
            )
    return results


def main() -> None:
    """Sweep and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", type=int, default=8, help="kinds of bench.independent, one engine each")
    parser.add_argument("--held-out", action="store_true", help="other engines than those that the rules were tried on")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    worlds = {world.scene.kind: world for world in load(kinds=KINDS) if not world.is_void}
    first = options.kinds if options.held_out else 0
    chosen = list(worlds.values())[first : first + options.kinds]
    with Pool(options.processes) as pool:
        compared = [row for of_engine in pool.imap(rows_of, chosen) for row in part("engine", of_engine)]
    claimed = {way: sum(row[way]["tokens_per_s"] is not None for row in compared) for way in ("ramp", "grid")}
    show("agreement", goals(compared), rates=len(compared), claimed=claimed, rows=compared)


if __name__ == "__main__":
    main()
