"""The drift detector on signals that know nothing of it: nulls of `bench/independent/nulls.py`, and probes of simulated engines.

    python -m bench.drift_independent [--held-out] [--kinds NAME,...] [--lanes N] [--days N]
                                      [--engine-days N] [--traces FOLDER] [--processes N]
    python -m bench.drift_independent --slower FACTOR [--held-out] [--traces FOLDER] [--processes N]

A kind is one of the nulls, or `engines`: every engine of `bench/independent/probes.py`, one lane each, those that replay a
production trace only with --traces. Each lane runs through the product's detector from its first sample on, as in production: it
learns, judges, recovers, and learns again after an improvement. Every alarm of the lane counts. At
four times of a lane, no less than four days after its start, while no alarm is active and no baseline is fitted, copies of the
detector get a slowdown; one that is not found within 8 h counts as infinite. --held-out: the half of the kinds that the detector
was not tuned on.

--slower: every engine alone, whose own steps take FACTOR times as long from the morning of the eighth day on. Copies multiply what was
measured; here requests also pile up, so that queue and requests in flight follow the slowdown, as they do in production.
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
from bench.independent.nulls import DAY_S, HELD_OUT, PROBE_INTERVAL_S, TUNING, Lane, lane
from bench.independent.probes import PROBED, probe_series
from bench.report import goal, part, show
from prober.features.drift.detector import step
from prober.features.drift.state import Drift, Observation, Settings, new_state

SETTINGS = Settings(rate_per_s=1 / PROBE_INTERVAL_S)
SEED = 17
FACTORS = (1.2, 1.3, 1.5)
CHANGES = 4  # times of a lane at which copies change
FIRST_CHANGE_DAY = 4.0
SEARCH_S = 8 * 3_600.0
SLOWER_DAY = 7.3
DAY = int(DAY_S / PROBE_INTERVAL_S)


@dataclass
class LaneFigures:
    """The detector on a lane.

    delays_min: by factor, of each copy; infinite if it found nothing
    """

    days: float
    alarms: dict[str, int] = field(default_factory=lambda: {"regression": 0, "unknown": 0})
    alarm_days: list[float] = field(default_factory=list)
    improvements: int = 0
    active_days: float = 0.0
    delays_min: dict[float, list[float]] = field(default_factory=lambda: {factor: [] for factor in FACTORS})
    baseline: dict[str, Any] = field(default_factory=dict)


def watch(lane: Lane, moments: Sequence[int]) -> LaneFigures:
    """The figures of a lane; copies change at the sample numbers `moments`."""
    figures = LaneFigures(float(lane.unix_s[-1] - lane.unix_s[0]) / DAY_S)
    state = new_state(SETTINGS)
    values = np.exp(lane.log_ttft)
    observations = [
        Observation(unix_s, value, None if load is None or math.isnan(load) else load)
        for unix_s, value, load in zip(lane.unix_s.tolist(), values.tolist(), _loads(lane), strict=True)
    ]
    pending = set(moments)
    for number, observation in enumerate(observations):
        if number in pending and state.baseline is not None and state.alarm is None:
            for factor, delays in figures.delays_min.items():
                delays.append(delay_min(deepcopy(state), observations, number, factor))
        _, verdict = step(state, observation)
        if verdict.event == "alarm":
            figures.alarms[str(verdict.cause)] += 1
            figures.alarm_days.append(round(number / DAY, 2))
        figures.improvements += verdict.event == "improved"
        figures.active_days += verdict.is_drift / DAY
        if verdict.event == "learnt" and state.settled and not figures.baseline:
            b = state.baseline
            assert b is not None
            figures.baseline = {name: round(float(getattr(b, name)), 3) for name in ("sd", "correlation", "wander")} | {
                "factor": b.factor,
                "inflations": [round(x, 1) for x in b.inflations],
                "known": sum(map(math.isfinite, b.level_errors)),
            }
    return figures


def _loads(lane: Lane) -> Sequence[float | None]:
    return [None] * len(lane.unix_s) if lane.load is None else lane.load.tolist()


def delay_min(state: Drift, observations: Sequence[Observation], start: int, factor: float) -> float:
    """Minutes until a slowdown by `factor` from a sample on is found; infinite if it is not found within `SEARCH_S`."""
    state.spread = None
    begin_s = observations[start].unix_s
    for observation in observations[start:]:
        if observation.unix_s - begin_s > SEARCH_S:
            break
        _, verdict = step(state, observation._replace(value=factor * observation.value))
        if verdict.event == "alarm":
            return (observation.unix_s - begin_s) / 60
    return math.inf


def measure(kind: str, number: int, days: float, load_seen: bool) -> LaneFigures:
    """Figures of lane `number` of a kind."""
    signal = lane(kind, number, days, SEED, load_seen)
    rng = np.random.default_rng((SEED, number))
    first = min(FIRST_CHANGE_DAY, days / 2) * DAY
    return watch(signal, rng.integers(int(first), len(signal.unix_s) - DAY // 3, CHANGES).tolist())


def measure_engine(number: int, days: float, traces: str | None, load_seen: bool) -> LaneFigures:
    """Figures of the engine `PROBED[number]`."""
    series = probe_series(PROBED[number], days, SEED, Path(traces) if traces else None)
    answered = np.isfinite(series.log_ttft_s)
    load = series.load[answered].astype(np.float64) if load_seen else None
    signal = Lane(series.unix_s[answered], series.log_ttft_s[answered], load)
    rng = np.random.default_rng((SEED, number))
    first = min(FIRST_CHANGE_DAY, days / 2) * DAY
    return watch(signal, rng.integers(int(first), len(signal.unix_s) - DAY // 3, CHANGES).tolist())


@dataclass
class SlowerFigures:
    """The detector on an engine that becomes slower.

    alarms_before: in the days before
    found_min: from the change to the first alarm; infinite if there is none
    ended_min: from the change to the end of that alarm; infinite if it is active at the end of the day
    active_share: of the day after it was found, with an active alarm
    """

    alarms_before: int = 0
    found_min: float = math.inf
    ended_min: float = math.inf
    active_share: float = 0.0


def measure_slower(number: int, factor: float, traces: str | None) -> SlowerFigures:
    """Figures of the engine `PROBED[number]`, whose steps take `factor` times as long from `SLOWER_DAY` on."""
    folder = Path(traces) if traces else None
    series = probe_series(PROBED[number], SLOWER_DAY + 1, SEED, folder, slowdown=(SLOWER_DAY, factor))
    figures, state = SlowerFigures(), new_state(SETTINGS)
    change_unix_s = float(series.unix_s[0]) + SLOWER_DAY * DAY_S
    active: list[bool] = []
    for unix_s, log_ttft_s, load in zip(series.unix_s, series.log_ttft_s, series.load, strict=True):
        if not math.isfinite(log_ttft_s):
            continue
        _, verdict = step(state, Observation(float(unix_s), math.exp(log_ttft_s), float(load)))
        since_min = (float(unix_s) - change_unix_s) / 60
        if verdict.event == "alarm" and since_min < 0:
            figures.alarms_before += 1
        elif verdict.event == "alarm":
            figures.found_min = min(figures.found_min, since_min)
        if math.isfinite(figures.found_min):
            active.append(verdict.active)
            if not verdict.active:
                figures.ended_min = min(figures.ended_min, since_min)
    figures.active_share = sum(active) / len(active) if active else 0.0
    return figures


def show_slower(engines: Sequence[int], factor: float, pool: Any, traces: str | None) -> None:
    """Print the figures of engines that become slower."""
    rows = pool.starmap(measure_slower, [(number, factor, traces) for number in engines], chunksize=1)
    delays_min = [row.found_min for row in rows]
    show(
        "drift_independent",
        [
            goal("engines whose slowdown is not found in a day", sum(map(math.isinf, delays_min)), 0, "engines"),
            goal(
                "engines whose alarm ends within that day",
                sum(math.isfinite(row.ended_min) for row in rows),
                0,
                "engines",
            ),
        ],
        slower=factor,
        engines={
            PROBED[number].name: {
                "alarms_before": row.alarms_before,
                "found_min": _finite(row.found_min),
                "ended_min": _finite(row.ended_min),
                "active_share": round(row.active_share, 3),
            }
            for number, row in zip(engines, rows, strict=True)
        },
    )


def cell(lanes: Sequence[LaneFigures]) -> dict[str, Any]:
    """Figures of a kind over its lanes."""
    months = sum(of.days for of in lanes) / 30
    alarms = sum(sum(of.alarms.values()) for of in lanes)
    delays = {factor: np.sort([value for of in lanes for value in of.delays_min[factor]]) for factor in FACTORS}
    return {
        "months": round(months, 2),
        "alarms": alarms,
        "per_30_days": round(alarms / months, 3),
        "interval": [round(bound, 3) for bound in poisson_interval(alarms, months)],
        "lanes_with_any": sum(sum(of.alarms.values()) > 0 for of in lanes),
        "lanes": len(lanes),
        "improvements": sum(of.improvements for of in lanes),
        "active_share": round(sum(of.active_days for of in lanes) / (30 * months), 4),
        "delays_min": {
            f"×{factor}": {
                "median": _finite(found[(len(found) - 1) // 2]),
                "p90": _finite(found[math.ceil(0.9 * len(found)) - 1]),
                "missed": int(np.isinf(found).sum()),
                "copies": len(found),
            }
            for factor, found in delays.items()
            if len(found)
        },
        "of_lanes": [(of.alarm_days, of.improvements, of.baseline) for of in lanes],
    }


def _finite(value: float) -> float | None:
    return round(float(value), 1) if math.isfinite(value) else None


def goals(cells: dict[str, Any]) -> list[dict[str, Any]]:
    """Goals for each kind and, over the kinds whose load moves the latency, for the delay."""
    results = []
    for name, figures in cells.items():
        if name.startswith("engine "):
            continue  # all engines together have a goal
        results.append(goal(f"false alarms, {name}", figures["per_30_days"], 0.3, "per 30 days"))
        median = figures["delays_min"]["×1.3"]["median"]
        most_min = 15 if "hit" in name else 6 if "not seen" not in name else 8
        results.append(goal(f"+30% median, {name}", math.inf if median is None else median, most_min, "min"))
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held-out", action="store_true", help="the kinds that the detector was not tuned on")
    parser.add_argument("--kinds", help="only these, separated by commas")
    parser.add_argument("--lanes", type=int, default=30)
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--engine-days", type=float, default=14.0)
    parser.add_argument("--traces", help="folder of the production traces")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--slower", type=float, metavar="FACTOR", help="engines whose steps take longer")
    options = parser.parse_args()
    if options.slower:
        options.kinds = "engines"
    kinds = options.kinds.split(",") if options.kinds else [*(HELD_OUT if options.held_out else TUNING), "engines"]
    engines = [
        number
        for number, probed in enumerate(PROBED)
        if "engines" in kinds
        and probed.is_held_out == options.held_out
        and (options.traces or probed.source == "generated")
    ]
    kinds = [kind for kind in kinds if kind != "engines"]
    rows = [(kind, seen) for kind in kinds for seen in (True, False)]
    with Pool(options.processes) as pool:
        if options.slower:
            show_slower(engines, options.slower, pool, options.traces)
            return
        figures = {
            row: pool.starmap_async(
                measure, [(row[0], number, options.days, row[1]) for number in range(options.lanes)], chunksize=1
            )
            for row in rows
        }
        of_engines = {
            seen: pool.starmap_async(
                measure_engine, [(number, options.engine_days, options.traces, seen) for number in engines], chunksize=1
            )
            for seen in (True, False)
        }
        names = {row: f"{row[0]}, load {'' if row[1] else 'not '}seen" for row in rows}
        cells = {name: part(name, cell(figures[row].get())) for row, name in names.items()}
        for seen, running in of_engines.items() if engines else ():
            name = f"load {'' if seen else 'not '}seen"
            for number, lane_figures in zip(engines, running.get(), strict=True):
                cells[f"engine {PROBED[number].name}, {name}"] = cell([lane_figures])
            cells[f"engines, {name}"] = cell(running.get())
    show(
        "drift_independent",
        goals(cells),
        lanes=options.lanes,
        days=options.days,
        held_out=options.held_out,
        cells=cells,
    )


if __name__ == "__main__":
    main()
