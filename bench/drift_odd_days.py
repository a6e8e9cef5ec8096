"""The drift detector on heavy queues, after odd weeks and faster models, at other rest days, and on engines whose load is not seen.

    python -m bench.drift_odd_days [--held-out] [--only KIND] [--lanes N] [--traces FOLDER] [--processes N]

The scenes are those of `bench/independent/odd_days.py`; nothing of the product was read to make them. Each goes through the product's
detector from its first sample on, with the load and without it; every alarm counts. At the scene's own times a copy of the detector
continues on an engine that is 1.3 times slower; if an alarm is active then, the change waits for its end. A change not found within
8 h is missed. `engines`: probes of simulated engines that replay production traces, without the load; only with --traces, as two of
the kinds of heavy queues.

A row has alarms per 30 days, days with an active alarm, unusual times (which alert nobody) and the days that they take, and minutes
until a change is found (null: missed). --held-out: the half of the kinds that nothing is tuned on.
"""

import argparse
import math
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np

from bench.drift import poisson_interval
from bench.independent.kinds import HELD_OUT as HELD_OUT_ENGINES
from bench.independent.odd_days import (
    DAY_S,
    FROM_TRACES,
    HELD_OUT,
    INTERVAL_S,
    TUNING,
    Floats,
    Group,
    Slower,
    scene,
)
from bench.independent.probes import ProbedEngine, probe_series
from bench.report import goal, part, show
from prober.features.drift.detector import step
from prober.features.drift.state import Drift, Observation, Settings, new_state

SETTINGS = Settings(rate_per_s=1 / INTERVAL_S)
SEED = 29
LANES: dict[Group, int] = {
    "heavy queues": 2,
    "after an odd week": 3,
    "after a faster model": 3,
    "other rest days": 2,
    "recurring": 2,
}
ENGINE_DAYS = 13.0
# Other parameters, other days and other loads than in `probes.PROBED`.
ENGINES = (
    ProbedEngine("chunked", seed=31, source="azure", profile="evening", has_bursts=True),
    ProbedEngine("alternating", seed=32, source="mooncake", peak_share=0.5),
    ProbedEngine("speculative", seed=33, source="azure", profile="evening"),
    ProbedEngine("least_busy", seed=34, source="mooncake", profile="flat"),
    ProbedEngine("preempting", seed=35, source="azure", peak_share=0.7),
    ProbedEngine("padding", seed=36, source="mooncake", has_bursts=True),
    ProbedEngine("separate", seed=31, source="azure", profile="evening", has_bursts=True),
    ProbedEngine("lockstep_ranks", seed=32, source="azure", peak_share=0.5),
    ProbedEngine("prefix_cache", seed=33, source="mooncake", profile="evening"),
    ProbedEngine("stalls", seed=34, source="azure", profile="flat"),
    ProbedEngine("shortest_first", seed=35, source="azure", peak_share=0.7),
    ProbedEngine("overlap", seed=36, source="mooncake", has_bursts=True),
)
MOST_MISSED = {("heavy queues", True): 2 / 35, ("heavy queues", False): 4 / 20}  # else one of six
MOST_MEDIAN_MIN = {True: 60, False: 120}  # in heavy queues


@dataclass
class Figures:
    """The detector on one scene.

    active_days: with an active alarm
    unusual, unusual_days: how often, and how long in all, the detector calls the latency unusual, which alerts nobody
    delays_min: of each change; infinite if it was not found
    unmeasured: changes for whose begin no time without an alarm was left
    """

    days: float
    alarm_days: list[float] = field(default_factory=list)
    active_days: float = 0.0
    unusual: int = 0
    unusual_days: float = 0.0
    improvements: int = 0
    delays_min: list[float] = field(default_factory=list)
    unmeasured: int = 0


def observations(unix_s: Floats, ttft_s: Floats, load: Floats, load_seen: bool) -> list[Observation]:
    """Samples as the detector takes them."""
    loads: Sequence[float | None] = load.tolist() if load_seen else [None] * unix_s.size
    return [Observation(*values) for values in zip(unix_s.tolist(), ttft_s.tolist(), loads, strict=True)]


def measure(kind: str, index: int, traces: str | None) -> dict[bool, Figures]:
    """Figures of scene `index` of a kind, by whether the load is seen."""
    of = scene(kind, index, SEED, Path(traces) if traces else None)
    return {seen: watch(of.unix_s, of.ttft_s, of.load, seen, of.moments_s, of.slower) for seen in (True, False)}


def watch(
    unix_s: Floats, ttft_s: Floats, load: Floats, load_seen: bool, moments_s: Sequence[float] = (), slower: Any = None
) -> Figures:
    """The figures of a series."""
    begin_unix_s = float(unix_s[0])
    figures, state = Figures(float(unix_s[-1] - begin_unix_s) / DAY_S), new_state(SETTINGS)
    pending = list(moments_s)
    is_active = False
    for observation in observations(unix_s, ttft_s, load, load_seen):
        at_s = observation.unix_s - begin_unix_s
        while pending and at_s >= pending[0] and not is_active:
            pending.pop(0)
            figures.delays_min.append(delay_min(deepcopy(state), slower(at_s), load_seen))
        _, verdict = step(state, observation)
        is_active = verdict.active
        if verdict.event == "alarm":
            figures.alarm_days.append(round(at_s / DAY_S, 2))
        figures.improvements += verdict.event == "improved"
        figures.unusual += verdict.event == "unusual"
        if is_active and verdict.cause == "unusual":
            figures.unusual_days += INTERVAL_S / DAY_S
        elif is_active:
            figures.active_days += INTERVAL_S / DAY_S
    figures.unmeasured = len(pending)
    return figures


def delay_min(state: Drift, after: Slower, load_seen: bool) -> float:
    """Minutes until the detector finds the change with whose probes it continues; infinite if it does not in `SEARCH_S`."""
    state.spread = None
    for observation in observations(after.unix_s, after.ttft_s, after.load, load_seen):
        _, verdict = step(state, observation)
        if verdict.event == "alarm":
            return (observation.unix_s - float(after.unix_s[0])) / 60
    return math.inf


def measure_engine(probed: ProbedEngine, traces: str) -> dict[bool, Figures]:
    """Figures of an engine, without its load."""
    series = probe_series(probed, ENGINE_DAYS, SEED, Path(traces))
    answered = np.isfinite(series.log_ttft_s)
    figures = watch(series.unix_s[answered], np.exp(series.log_ttft_s[answered]), series.load[answered], False)
    return {False: figures}


def row(scenes: Sequence[Figures]) -> dict[str, Any]:
    """The row of scenes together."""
    days = sum(of.days for of in scenes)
    alarms = sum(len(of.alarm_days) for of in scenes)
    delays = sorted(delay for of in scenes for delay in of.delays_min)
    return {
        "days": round(days, 1),
        "alarms": alarms,
        "per_30_days": round(alarms / days * 30, 3),
        "interval": [round(bound, 3) for bound in poisson_interval(alarms, days / 30)],
        "days_active": round(sum(of.active_days for of in scenes), 2),
        "unusual": sum(of.unusual for of in scenes),
        "days_unusual": round(sum(of.unusual_days for of in scenes), 2),
        "median_min": _finite(delays[(len(delays) - 1) // 2]) if delays else None,
        "p90_min": _finite(delays[math.ceil(0.9 * len(delays)) - 1]) if delays else None,
        "missed": sum(map(math.isinf, delays)),
        "changes": len(delays),
        "unmeasured": sum(of.unmeasured for of in scenes),
        "improvements": sum(of.improvements for of in scenes),
        "alarm_days": [of.alarm_days for of in scenes],
    }


def _finite(value: float) -> float | None:
    return round(value, 1) if math.isfinite(value) else None


def goals(group: Group, load_seen: bool, of: dict[str, Any]) -> list[dict[str, Any]]:
    """Goals for all scenes of a group together."""
    name = f"{group}, load {'' if load_seen else 'not '}seen"
    alarms = 1.0 if group == "recurring" else 0.3
    results = [goal(f"alarms, {name}", of["per_30_days"], alarms, "per 30 days")]
    if of["changes"] or of["unmeasured"]:
        missed = (of["missed"] + of["unmeasured"]) / (of["changes"] + of["unmeasured"])
        most = MOST_MISSED.get((group, load_seen), 1 / 6)
        results.append(goal(f"+30% missed, {name}", missed, round(most, 4), "share"))
    if group == "heavy queues" and of["changes"]:
        median = math.inf if of["median_min"] is None else of["median_min"]
        results.append(goal(f"+30% median, {name}", median, MOST_MEDIAN_MIN[load_seen], "min"))
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held-out", action="store_true", help="the kinds that nothing is tuned on")
    parser.add_argument("--only", metavar="KIND", help="one kind, one group of kinds, or `engines`")
    parser.add_argument("--lanes", type=int, help="scenes of each kind; two or three without it")
    parser.add_argument("--traces", help="folder of the production traces")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    half = HELD_OUT if options.held_out else TUNING
    scenes = [
        (group, kind)
        for group, kinds in half.items()
        for kind in kinds
        if options.only in (None, kind, group) and (options.traces or kind not in FROM_TRACES)
    ]
    engines = [probed for probed in ENGINES if (probed.kind in HELD_OUT_ENGINES) == options.held_out]
    if not options.traces or options.only not in (None, "engines"):
        engines = []
    if not scenes and not engines:
        parser.error(f"nothing to run: no kind {options.only} in this half, or it needs --traces")
    rows: dict[str, Any] = {}
    results = []
    with Pool(options.processes) as pool:
        running = {
            (group, kind): pool.starmap_async(
                measure, [(kind, index, options.traces) for index in range(options.lanes or LANES[group])], chunksize=1
            )
            for group, kind in scenes
        }
        of_engines = pool.starmap_async(measure_engine, [(probed, options.traces) for probed in engines], chunksize=1)
        for group in half:
            kinds = {kind: running[group, kind].get() for kind in half[group] if (group, kind) in running}
            for seen in (True, False) if kinds else ():
                for kind, figures in kinds.items():
                    name = f"{kind}, load {'' if seen else 'not '}seen"
                    rows[name] = part(name, row([of[seen] for of in figures]))
                name = f"{group}, load {'' if seen else 'not '}seen"
                rows[name] = row([of[seen] for figures in kinds.values() for of in figures])
                results += goals(group, seen, rows[name])
        for probed, of in zip(engines, of_engines.get(), strict=True):
            name = f"engine {probed.name}"
            rows[name] = part(name, row([of[False]]))
        if engines:
            together = rows["engines, load not seen"] = row([of[False] for of in of_engines.get()])
            results.append(goal("alarms, engines, load not seen", together["per_30_days"], 0.3, "per 30 days"))
            share = together["days_active"] / together["days"]
            results.append(goal("days with an active alarm, engines, load not seen", share, round(3 / 156, 4), "share"))
    show("drift_odd_days", results, held_out=options.held_out, rows=rows)


if __name__ == "__main__":
    main()
