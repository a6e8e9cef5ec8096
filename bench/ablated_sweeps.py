"""Sweeps of independent engines, recorded once, as a subject of `bench.ablation`: the fit, the knee and the interval.

A sweep is recorded up to its end of sending, and once more as it goes on where no model explains the record: with the second a
fit that fails where another did not is judged by what the prober would have measured then.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from time import process_time
from typing import Any
from unittest.mock import patch

from bench.ablation import Change, Figures, Row, Subject, rows_of
from bench.independent.sweeps import CLOCK_S, SweepDriver, Telemetry, plan
from bench.independent.worlds import World, load
from bench.knee_independent import MIN_KNEE_PER_S, SEED, accuracy
from prober.features.capacity import estimate, fitting
from prober.features.capacity.actions import Estimate, Finished
from prober.features.capacity.engine_fit import STRUCTURES
from prober.features.capacity.estimate import estimate_capacity
from prober.features.capacity.sweep import Sweep
from prober.results.capacity import Capacity

SEED_OF_ESTIMATE = 0
NAMES = [of.name for of in STRUCTURES]
FITTING, ESTIMATE = fitting.__name__, estimate.__name__


@dataclass(frozen=True)
class RecordedSweep:
    """A sweep of a world. states: the state machine at each end of sending, pickled, with the time"""

    world: World
    telemetry: Telemetry
    states: Sequence[tuple[bytes, float]]

    def __str__(self) -> str:
        return self.world.name


def recorded(world: World, telemetry: Telemetry, traces: Path | None) -> RecordedSweep:
    """Sweep a world, and record the machine at each end of sending. Estimates are by fractions only."""
    driver, states = SweepDriver(world, telemetry, SEED, traces), []
    for action in driver.run(*plan(world, traces)):
        sweep, at_s = driver.sweep, CLOCK_S + driver.now_s
        assert sweep is not None
        if isinstance(action, Estimate):
            states.append((pickle.dumps(sweep), at_s))
            with patch.object(estimate, "fit", lambda *_: None):
                capacities = estimate_capacity(action.record).capacities
            sweep.estimated(capacities, at_s, is_modelled=False)
    return RecordedSweep(world, telemetry, states)


def cases(telemetry: Telemetry, folder: Path, traces: Path | None) -> list[RecordedSweep]:
    """The recorded sweeps of all independent engines with a knee."""
    sweeps = []
    for world in load(traces):
        if world.knee_per_s is None or world.knee_per_s < MIN_KNEE_PER_S:
            continue
        path = folder / f"{world.name.replace(' ', '_')}.pickle"
        if not path.exists():
            path.write_bytes(pickle.dumps(recorded(world, telemetry, traces)))
        sweeps.append(pickle.loads(path.read_bytes()))
    return sweeps


def figures(case: RecordedSweep) -> Figures:
    """Error (1 without a figure), coverage, width and processor time of a sweep's estimates.

    What no row judges is not computed: the curve, and capacities in requests of other shapes.
    """
    began_s, capacity, structure = process_time(), Capacity("ttft", "not_enough_data"), -1
    with (
        patch.object(estimate, "_curve", lambda *_: ()),
        patch.object(estimate, "by_model", lambda *_: (None, ())),
        patch.object(estimate, "with_shapes", lambda of, *_: of),
    ):
        for state, at_s in case.states:
            sweep: Sweep = pickle.loads(state)
            assert isinstance(sweep.action, Estimate)
            answer = estimate_capacity(sweep.action.record, SEED_OF_ESTIMATE)
            capacity = answer.capacities[0]
            if answer.fit is not None:
                structure = NAMES.index(answer.fit.structure)
            sweep.estimated(answer.capacities, at_s, is_modelled=answer.fit is not None)
            if isinstance(sweep.action, Finished):
                capacity = sweep.action.capacities[0]
                break
    known = accuracy(case.world, case.telemetry, capacity)
    result = {
        "cpu_s": process_time() - began_s,
        "error": min(1.0, known.get("error", 1.0)),
        "absent": float("error" not in known),
        "structure": structure,  # no row: which one of STRUCTURES was chosen, -1: none
    }
    return result | ({"covered": float(known["covered"]), "width": known["width"]} if known else {})


ROWS = (*rows_of("error"), *(Row(name, name, fmean) for name in ("covered", "width", "absent", "cpu_s")))


def _without_structures(*names: str) -> dict[str, Any]:
    return {f"{FITTING}.STRUCTURES": tuple(of for of in STRUCTURES if not of.name.startswith(names))}


CHANGES = (
    Change("another seed", {f"{__name__}.SEED_OF_ESTIMATE": 1}),
    Change("no evolution", {f"{FITTING}.EVOLUTIONS": ()}),
    Change(
        "no evolution, plainest structure only", {f"{FITTING}.EVOLUTIONS": (), f"{FITTING}.STRUCTURES": STRUCTURES[:1]}
    ),
    *(Change(f"no structure: {of.name}", _without_structures(of.name)) for of in STRUCTURES[1:]),
)

WAYS: tuple[tuple[Telemetry, str], ...] = (("counters", "with a page"), ("none", "without a page"))
SUBJECTS = {f"sweeps {title}": Subject(partial(cases, telemetry), figures, ROWS, CHANGES) for telemetry, title in WAYS}
