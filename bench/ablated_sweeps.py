"""Sweeps of independent engines, recorded once, as a subject of `bench.ablation`: the fit, the knee and the interval."""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from time import process_time
from types import ModuleType
from typing import Any
from unittest.mock import patch

from bench.ablation import Change, Figures, Row, Subject, rows_of
from bench.independent.sweeps import SweepDriver, Telemetry, plan
from bench.independent.worlds import World, load
from bench.knee_independent import MIN_KNEE_PER_S, SEED, accuracy
from prober.features.capacity import estimate, fit_objective, fitting, knee, observations
from prober.features.capacity.actions import Estimate
from prober.features.capacity.estimate import USUAL_POWER, estimate_capacity
from prober.features.capacity.sweep_record import Record
from prober.results.capacity import Capacity

SEED_OF_ESTIMATE = 0
STRUCTURES = fitting.STRUCTURES


@dataclass(frozen=True)
class RecordedSweep:
    """A sweep of a world, recorded up to the end of its sending."""

    world: World
    telemetry: Telemetry
    record: Record

    def __str__(self) -> str:
        return self.world.name


def recorded(world: World, telemetry: Telemetry, traces: Path | None) -> RecordedSweep:
    """Sweep a world up to its end of sending."""
    driver = SweepDriver(world, telemetry, SEED, traces)
    action = next(driver.run(*plan(world, traces)))
    assert isinstance(action, Estimate)
    return RecordedSweep(world, telemetry, action.record)


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

    What no row judges is not computed: the curve, and how the knee moves with the requests' lengths.
    """
    began_s = process_time()
    with (
        patch.object(estimate, "_curve", lambda *_: ()),
        patch.object(estimate, "_powers", lambda *_: (USUAL_POWER, USUAL_POWER)),
    ):
        answer = estimate_capacity(case.record, SEED_OF_ESTIMATE)
    (capacity,) = answer.capacities
    structure = -1 if answer.fit is None else list(STRUCTURES).index(answer.fit.structure)
    known = accuracy(case.world, case.telemetry, capacity)
    result = {
        "cpu_s": process_time() - began_s,
        "error": min(1.0, known.get("error", 1.0)),
        "absent": float("error" not in known),
        "structure": structure,  # no row: which one of STRUCTURES was chosen, -1: none
    }
    return result | ({"covered": float(known["covered"]), "width": known["width"]} if known else {})


ROWS = (*rows_of("error"), *(Row(name, name, fmean) for name in ("covered", "width", "absent", "cpu_s")))


def _none(*_: Any) -> None:
    return None


def _nothing(*_: Any) -> Iterator[Any]:
    return iter(())


def _first(one: Capacity, _: Capacity) -> Capacity:
    return one


def _of(module: ModuleType, **values: Any) -> dict[str, Any]:
    return {f"{module.__name__}.{name}": value for name, value in values.items()}


CHANGES = (
    Change("another seed", {f"{__name__}.SEED_OF_ESTIMATE": 1}),
    *(
        Change(f"no {name}", _of(fitting, STRUCTURES={key: of for key, of in STRUCTURES.items() if key != name}))
        for name in STRUCTURES
        if name != fitting.PLAINEST
    ),
    Change("no tail", _of(fitting, _tail=_none)),
    Change("no means of neighbours", _of(fit_objective, GROUP_WEIGHT=0.0)),
    Change("no means of the page", _of(observations, _of_histograms=_nothing)),
    Change("no search for slots", _of(fitting, SLOT_FACTORS=())),
    Change("no advantage of usual budgets", _of(fitting, USUAL_ADVANTAGE=0.0)),
    Change("no scan of budgets", _of(fitting, BUDGET_FACTORS=((1.0,),) * len(fitting.SHARES))),
    Change("any error of a model", _of(estimate, MAX_MODEL_ERROR=1e9)),
    Change("fractions never beside a model", _of(estimate, agreed=_first)),
    Change("no Pareto tail of fractions", _of(knee, MIN_TAIL_SAMPLES=10**9)),
)

WAYS: tuple[tuple[Telemetry, str], ...] = (("counters", "with a page"), ("none", "without a page"))
SUBJECTS = {f"sweeps {title}": Subject(partial(cases, telemetry), figures, ROWS, CHANGES) for telemetry, title in WAYS}
