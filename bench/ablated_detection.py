"""Drift and diagnosis as subjects of `bench.ablation`: signals and scenes that know nothing of either.

- **diagnosis**: scenes of the held-out half of `bench.diagnosis_independent`, of one cause and of two, each diagnosed with all that
  was read, by probes alone, and from the first two minutes of the trouble.
- **drift**: 16 days of signals of `bench.independent.nulls`, mostly of held-out kinds, with the load and without it. Copies of the
  detector get a slowdown; delays are logarithms of minutes.
"""

import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from bench.ablation import Change, Figures, Row, Subject
from bench.drift_independent import DAY, SEARCH_S
from bench.independent.causes import Scene, scene
from bench.independent.causes_catalogue import CAUSES, PAIRS, Truth
from bench.independent.nulls import PROBE_INTERVAL_S, lane
from prober.features.diagnosis import clues, mechanisms
from prober.features.diagnosis.clues import Symptoms
from prober.features.diagnosis.diagnosis import diagnose
from prober.features.drift import baseline, detector, evidence, first_days, fitting, state
from prober.features.drift.baseline import Baseline
from prober.features.drift.blocks import Blocks
from prober.features.drift.state import Drift, Observation, Settings, new_state

SCENES_PER_CAUSE, SCENES_PER_PAIR = 6, 3
FIRST_S = 120.0  # of the trouble, as the daemon first judges it
# What the diagnosis should say of slow steps, by the cause that acts.
REASONS = {"throttled": "clock", "neighbour": "process", "larger_batch": "batch", "slow_host": "neither"}
LOAD_SEEN = (
    *("load_scaled_noise", "weekend", "stepped", "nightly_backup", "worn_service"),
    *("hit_ratio_by_load", "busy_service", "queue", "two_replicas", "missing_data"),
)
LOAD_NOT_SEEN = (
    *("bimodal", "weekend", "steady_weekend", "weekday_trend", "ar_0.6", "daily_bursts", "slow_wander", "heavy_tail"),
    *("daylight_saving", "worn_service", "holiday", "steady_office_hours", "queue"),
)
DAYS, SEED = 16.0, 29
FACTORS = (1.2, 1.5)
COPIES, FIRST_COPY_DAY = 2, 4.5


def halved_and_doubled(*modules: ModuleType) -> Iterator[Change]:
    """Changes of all numeric constants of some modules."""
    for module in modules:
        for name, value in vars(module).items():
            if name.isupper() and isinstance(value, int | float) and not isinstance(value, bool):
                for factor in (0.5, 2):
                    scaled = value * factor
                    changed = max(1, round(scaled)) if isinstance(value, int) else scaled
                    yield Change(f"{name} × {factor:g}", {f"{module.__name__}.{name}": changed})


# Diagnosis


@dataclass(frozen=True)
class View:
    """Symptoms of a scene, seen in one way."""

    name: str
    acting: str
    truth: Truth
    symptoms: Symptoms

    def __str__(self) -> str:
        return self.name


def views(of: Scene) -> Iterator[View]:
    """A scene as it is seen with all readings, by probes alone, and early."""
    begin_ns = min(probe.timeline.intended_ns for probe in of.trouble.probes)
    end_ns = begin_ns + FIRST_S * 1e9
    readings = tuple(reading for reading in of.trouble.readings if reading[0] <= end_ns / 1e9)
    early = replace(
        of.trouble,
        probes=tuple(probe for probe in of.trouble.probes if probe.timeline.intended_ns <= end_ns),
        readings=readings,
        devices=of.trouble.devices[: len(readings)],
    )
    bare = [replace(window, readings=(), devices=()) for window in (of.healthy, of.trouble)]
    for view, seen in (
        ("all", of),
        ("probes", replace(of, healthy=bare[0], trouble=bare[1], page=None)),
        ("early", replace(of, trouble=early)),
    ):
        yield View(f"{of.name} {view}", of.name.split("/")[1], of.truth, seen.evidence)


def scenes(folder: Path, _: Path | None) -> Sequence[View]:
    """Views of all scenes."""
    path = folder / "views.pickle"
    if not path.exists():
        tasks: list[tuple[tuple[str, ...], int]] = [((cause,), SCENES_PER_CAUSE) for cause in CAUSES]
        tasks += [(pair, SCENES_PER_PAIR) for pair in PAIRS["held_out"]]
        seen = [scene("held_out", names, index) for names, count in tasks for index in range(count)]
        path.write_bytes(pickle.dumps([view for of in seen for view in views(of)]))
    found: Sequence[View] = pickle.loads(path.read_bytes())
    return found


def diagnosed(view: View) -> Figures:
    """Whether the names are right, and wrong; whether the reason of slow steps is right."""
    old = view.symptoms
    diagnosis = diagnose(Symptoms(old.now, old.before, old.breached, old.engine))
    verdict = view.truth.verdict(diagnosis.regimes)
    figures = {"right": float(verdict == "right"), "wrong": float(verdict == "wrong")}
    if view.acting in REASONS and diagnosis.regimes == ("slow_decode",) and not diagnosis.missing:
        figures["reason"] = float(REASONS[view.acting] in diagnosis.why)
    return figures


# Drift


class Signal(NamedTuple):
    """A signal by its kind. is_seen: whether its load is"""

    kind: str
    number: int
    is_seen: bool

    def __str__(self) -> str:
        return f"{self.kind} {self.number}{'' if self.is_seen else ', load not seen'}"


def signals(_: Path, __: Path | None) -> Sequence[Signal]:
    """One signal of each kind."""
    return [Signal(kind, 0, True) for kind in LOAD_SEEN] + [Signal(kind, 0, False) for kind in LOAD_NOT_SEEN]


def watched(signal: Signal) -> Figures:
    """Alarms, days with an active one, and delays of slowdowns."""
    of = lane(signal.kind, signal.number, DAYS, SEED, signal.is_seen)
    loads = [math.nan] * len(of.unix_s) if of.load is None else of.load.tolist()
    seen = [
        Observation(at_s, value, None if math.isnan(load) else load)
        for at_s, value, load in zip(of.unix_s.tolist(), np.exp(of.log_ttft).tolist(), loads, strict=True)
    ]
    starts = np.linspace(FIRST_COPY_DAY * DAY, len(seen) - SEARCH_S / PROBE_INTERVAL_S, COPIES).astype(int).tolist()
    drift, delays = new_state(Settings(1 / PROBE_INTERVAL_S)), dict[float, list[float]]()
    alarms = active = 0
    for number, observation in enumerate(seen):
        if number in starts and drift.baseline is not None:
            for factor in FACTORS:
                delays.setdefault(factor, []).append(math.log(delay_min(drift, seen[number:], factor)))
        verdict = detector.step(drift, observation)[1]
        alarms, active = alarms + (verdict.event == "alarm"), active + verdict.is_drift
    side = "load seen" if signal.is_seen else "load not seen"
    found = {"alarms": float(alarms), f"alarms, {side}": float(alarms), "active days": active / DAY}
    return found | {f"delay ×{factor:g}, {side}": fmean(logs) for factor, logs in delays.items()}


def delay_min(drift: Drift, seen: Sequence[Observation], factor: float) -> float:
    """Minutes until a slowdown is found by a copy of the detector; `SEARCH_S` if it is not, or if an alarm is active."""
    copy, begin_s = deepcopy(drift), seen[0].unix_s
    copy.spread = None
    for observation in seen if drift.alarm is None else ():
        if observation.unix_s - begin_s > SEARCH_S:
            break
        if detector.step(copy, observation._replace(value=factor * observation.value))[1].event == "alarm":
            return max(observation.unix_s - begin_s, PROBE_INTERVAL_S) / 60
    return SEARCH_S / 60


def _never(*_: Any) -> bool:
    return False


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _none(*_: Any) -> float:
    return 0.0


def _undivided(model: Baseline, _: Blocks) -> Baseline:
    return replace(model, cuts=())


BRANCHES: Mapping[str, tuple[ModuleType, str, Any]] = {
    "references by fifth": (fitting, "_divided", _undivided),
    "visits": (detector, "_visit", _nothing),
    "caution": (detector, "MAX_CAUTION", 1.0),
    "one level a day": (fitting, "_repeats_daily", _never),
    "one level at all": (fitting, "_is_flat", _never),
    "weekends": (baseline, "is_weekend", _never),
    "wander": (fitting, "_wander", _none),
    "three minutes": (detector, "MIN_CHANGE_S", 0.0),
    "tails": (evidence, "TAILS", ()),
    "a week beside": (detector, "_extend", _nothing),
    "the first days": (first_days, "judge", _nothing),
}

FIGURES = (
    "alarms",
    *(
        f"{figure}, {side}"
        for side in ("load seen", "load not seen")
        for figure in ("alarms", "delay ×1.2", "delay ×1.5")
    ),
    "active days",
)
SUBJECTS = {
    "diagnosis": Subject(
        scenes,
        diagnosed,
        [Row(figure, figure, fmean) for figure in ("right", "wrong", "reason")],
        list(halved_and_doubled(clues, mechanisms)),
    ),
    "drift": Subject(
        signals,
        watched,
        [Row(figure, figure, fmean) for figure in FIGURES],
        [
            *(Change(f"without {name}", {f"{of.__name__}.{place}": to}) for name, (of, place, to) in BRANCHES.items()),
            *halved_and_doubled(state, evidence, detector, fitting, baseline, first_days),
        ],
    ),
}
