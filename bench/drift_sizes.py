"""Whether what the drift detector says of a slowdown is true: its size, its end, and where the load is outside what was learnt.

    python -m bench.drift_sizes [--held-out] [--services N] [--variations 0,0.1,…] [--factors 1.05,…] [--unseen] [--processes N]

Services are the queues of `bench/independent/queues.py`, whose arrivals vary by ± a variation (a day's sine, a random walk) and know
nothing of the service. The product's detector learns each for three days; copies of it then see the same service with its work or its
overhead multiplied for twelve hours, and restored for twelve more.

- **size**: at four ages of an alarm (its first statement, 20, 60 and 100 minutes), each interval that is stated is compared with the
  truth: the ratio of the same quantile with the change and without it over the same time at the same load, in the mean over chance
- **ended early**: alarms that ended while the service was still slow, of changes that move the median by half a material change or more
- **ended late**: alarms that were still active twelve hours after the change was undone
- **outside**: copies whose load leaves what was learnt (two times and a third of it), slower or not: no size, no cause

--held-out: other services, which nothing was tuned on. --unseen: the load is not known to the detector.
"""

import argparse
import math
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from multiprocessing import Pool
from typing import Any

import numpy as np

from bench.independent.queues import (
    BEGIN_UNIX_S,
    DAY_S,
    NO_CHANGE,
    PROBES_PER_S,
    SHAPES,
    Change,
    Kind,
    Probes,
    Queue,
    Truth,
    at_load,
    probes,
    queue,
    requests,
    ttfts_s,
)
from bench.report import goal, part, show
from prober.features.drift.detector import step
from prober.features.drift.state import Drift, DriftVerdict, Observation, Settings, Shift, new_state, shifts

SETTINGS = Settings(rate_per_s=PROBES_PER_S)
VARIATIONS = (0.0, 0.1, 0.2, 0.4)
FACTORS = (1.05, 1.1, 1.2, 1.5, 2.0, 4.0)
KINDS: tuple[Kind, ...] = ("fifo", "sharing", "slots")
LEARNT_S = 3.2 * DAY_S
SLOW_S, AFTER_S = 12 * 3_600.0, 12 * 3_600.0
TRUTH_S = 6 * 3_600.0  # after a change: ages of an alarm within it are judged
AGES_S = (0.0, 1_200.0, 3_600.0, 6_000.0)
OUTSIDE = (2.0, 1 / 3)  # times the load
MIN_COVERED = 0.9


@dataclass
class Cell:
    """Of one factor at one variation.

    held: statements of a size, and those whose interval holds the truth
    widths: of the intervals, as ratios of their ends
    """

    changes: int = 0
    alarms: int = 0
    held: list[bool] = field(default_factory=list)
    misses: list[tuple[Any, ...]] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)
    early: int = 0
    judged_early: int = 0
    late: int = 0
    judged_late: int = 0
    delays_min: list[float] = field(default_factory=list)
    endings_min: list[float] = field(default_factory=list)


@dataclass
class Outside:
    """Copies whose load is outside what was learnt. stated: samples with a size or the cause regression meanwhile."""

    copies: int = 0
    samples: int = 0
    recognised: int = 0
    stated: int = 0
    alarms: int = 0


@dataclass
class Service:
    """Figures of one service. false_alarms: in the half day before the changes."""

    cells: dict[float, Cell] = field(default_factory=lambda: defaultdict(Cell))
    outside: Outside = field(default_factory=Outside)
    false_alarms: int = 0


def verdicts(state: Drift, seen: Probes, *, is_seen: bool) -> Iterator[tuple[float, DriftVerdict]]:
    """(Unix seconds, verdict) of each probe."""
    for unix_s, ttft_s, load in zip(
        seen.unix_s.tolist(), seen.ttft_s.tolist(), seen.arrivals_per_s.tolist(), strict=True
    ):
        yield unix_s, step(state, Observation(unix_s, ttft_s, load if is_seen else None))[1]


def measure(
    variation: float, shape: str, kind: Kind, number: int, factors: tuple[float, ...], is_seen: bool
) -> Service:
    """Figures of one service."""
    seed = [zlib.crc32(f"{variation} {shape} {kind}".encode()), number]
    rng, figures = np.random.default_rng(seed), Service()
    service = queue(rng, kind, max(factors) if number // 2 % 2 else min(2.0, max(factors)))
    factors = tuple(factor for factor in factors if factor * 1.4 * service.busy_ratio < 1)
    begin_s = round((LEARNT_S + rng.uniform(0.0, 0.5 * DAY_S)) / 60) * 60.0
    end_s = begin_s + SLOW_S + AFTER_S
    load = SHAPES[shape](rng, variation, round(end_s / 60))
    sent = requests(rng, service, load)
    state = new_state(SETTINGS)
    past = probes(sent, ttfts_s(service, sent))
    is_past = past.unix_s < BEGIN_UNIX_S + begin_s
    for unix_s, verdict in verdicts(state, _part(past, is_past), is_seen=is_seen):
        figures.false_alarms += verdict.event == "alarm" and unix_s > BEGIN_UNIX_S + LEARNT_S
    if not state.settled or state.alarm is not None:
        return figures
    is_after = sent.arrivals_s >= begin_s - 3_600.0  # what is still in the service when the change begins
    later = type(sent)(*(getattr(sent, name)[is_after] for name in ("arrivals_s", "work", "overhead", "is_probe")))
    minutes = slice(round(begin_s / 60) - 60, round((begin_s + TRUTH_S) / 60))
    for factor in factors:
        for place in ("work", "overhead"):
            if place == "overhead" and factor not in (1.5, 2.0):
                continue
            change = Change(factor, place, begin_s, begin_s + SLOW_S)
            truth = Truth(
                np.random.default_rng([*seed, 1]), service, load[minutes], begin_s - 3_600.0, Change(factor, place)
            )
            seen = probes(later, ttfts_s(service, later, change))
            future = _part(seen, seen.unix_s >= BEGIN_UNIX_S + begin_s)
            follow(
                deepcopy(state), future, begin_s, truth, figures.cells[factor], (shape, kind, number, place), is_seen
            )
    for times in OUTSIDE if is_seen else ():
        for factor in (1.0, min(2.0, max(factors))):
            if times * factor * (1 + variation) * service.busy_ratio < 0.95:
                outside(deepcopy(state), rng, service, times, factor, begin_s, figures.outside, is_seen)
    return figures


def _part(of: Probes, chosen: Any) -> Probes:
    return Probes(of.unix_s[chosen], of.ttft_s[chosen], of.arrivals_per_s[chosen])


def follow(
    state: Drift, future: Probes, begin_s: float, truth: Truth, cell: Cell, name: tuple[Any, ...], is_seen: bool
) -> None:
    """Add what is said of one change, and of its end, to a cell."""
    cell.changes += 1
    restored_s, raised_s, was_early = begin_s + SLOW_S, math.inf, False
    ages, times = list(AGES_S), future.unix_s - BEGIN_UNIX_S
    ended_s = math.inf
    for number, (unix_s, verdict) in enumerate(verdicts(state, future, is_seen=is_seen)):
        now_s = unix_s - BEGIN_UNIX_S
        if now_s >= restored_s and not verdict.active:
            ended_s = now_s
            break
        if raised_s == math.inf and verdict.active:
            raised_s = now_s
        was_early |= now_s > raised_s and not verdict.active
        is_due = verdict.active and ages and now_s - raised_s >= ages[0] and now_s < begin_s + TRUTH_S
        if is_due and (stated := shifts(state)):
            ages.pop(0)
            compare(cell, stated, truth, times[max(0, number + 1 - stated[0].count)], now_s, name)
    if raised_s == math.inf:
        return
    cell.alarms += 1
    cell.delays_min.append((raised_s - begin_s) / 60)
    if truth.ratio(0.5, begin_s, begin_s + TRUTH_S) >= 1 + SETTINGS.spec.material / 2:
        cell.judged_early += 1
        cell.early += was_early
    if not was_early:
        cell.judged_late += 1
        cell.late += ended_s == math.inf
        cell.endings_min += [(ended_s - restored_s) / 60] if ended_s < math.inf else []


def compare(
    cell: Cell, stated: Sequence[Shift], truth: Truth, since_s: float, now_s: float, name: tuple[Any, ...]
) -> None:
    """Add the statements of a moment to a cell."""
    for shift in stated:
        true = truth.ratio(shift.q, since_s, now_s)
        holds = shift.lower <= true <= shift.upper
        cell.held.append(holds)
        cell.widths.append(shift.upper / shift.lower)
        if not holds:
            row = (*name, round(now_s), shift.q, true, shift.ratio, shift.lower, shift.upper)
            cell.misses.append(tuple(round(x, 3) if isinstance(x, float) else x for x in row))


def outside(
    state: Drift,
    rng: np.random.Generator,
    service: Queue,
    times: float,
    factor: float,
    begin_s: float,
    figures: Outside,
    is_seen: bool,
) -> None:
    """Add what is said while the load is `times` what it was to the figures, from a quarter of an hour on, for four hours."""
    sent = requests(rng, at_load(service, times), np.ones(255), begin_s)
    change = Change(factor) if factor > 1 else NO_CHANGE
    figures.copies += 1
    for unix_s, verdict in verdicts(state, probes(sent, ttfts_s(service, sent, change)), is_seen=is_seen):
        figures.alarms += verdict.event == "alarm"
        if unix_s < BEGIN_UNIX_S + begin_s + 900.0:
            continue
        figures.samples += 1
        figures.recognised += verdict.load == "outside"
        figures.stated += verdict.active and (verdict.cause == "regression" or bool(shifts(state)))


def figures_of(rows: list[Service]) -> tuple[dict[float, Cell], Outside, int]:
    """Sums over services."""
    cells: dict[float, Cell] = defaultdict(Cell)
    total = Outside()
    for row in rows:
        for factor, of in row.cells.items():
            for name, value in vars(of).items():
                setattr(cells[factor], name, getattr(cells[factor], name) + value)
        for name, value in vars(row.outside).items():
            setattr(total, name, getattr(total, name) + value)
    return cells, total, sum(row.false_alarms for row in rows)


def quartiles(values: list[float]) -> list[float | None]:
    """Lower quartile, median, upper quartile."""
    return [round(float(x), 2) for x in np.quantile(values, (0.25, 0.5, 0.75))] if values else [None] * 3


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held-out", action="store_true", help="services that nothing was tuned on")
    parser.add_argument("--services", type=int, default=4, help="of each kind, shape and variation")
    parser.add_argument("--variations", default=",".join(map(str, VARIATIONS)))
    parser.add_argument("--factors", default=",".join(map(str, FACTORS)))
    parser.add_argument("--unseen", action="store_true", help="the detector does not know the load")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--misses", action="store_true", help="list the statements that do not hold the truth")
    options = parser.parse_args()
    variations = [float(text) for text in options.variations.split(",")]
    factors = tuple(float(text) for text in options.factors.split(","))
    numbers = [2 * n + options.held_out for n in range(options.services)]
    goals, cells = [], {}
    with Pool(options.processes) as pool:
        running = {
            variation: pool.starmap_async(
                measure,
                [
                    (variation, shape, kind, number, factors, not options.unseen)
                    for shape in SHAPES
                    for kind in KINDS
                    for number in numbers
                ],
                chunksize=1,
            )
            for variation in variations
        }
        for variation, rows in running.items():
            of_factors, beyond, false_alarms = figures_of(rows.get())
            name = f"load ±{variation:.0%}"
            for factor, cell in sorted(of_factors.items()):
                covered = sum(cell.held) / len(cell.held) if cell.held else None
                if covered is not None:
                    goals.append(goal(f"sizes missed, ×{factor:g}, {name}", 1 - covered, 1 - MIN_COVERED, "share"))
                row: dict[str, Any] = {
                    "changes": cell.changes,
                    "alarms": cell.alarms,
                    "statements": len(cell.held),
                    "covered": covered,
                    "width": quartiles(cell.widths),
                    "delay_min": quartiles(cell.delays_min),
                    "ended_early": [cell.early, cell.judged_early],
                    "ended_late": [cell.late, cell.judged_late],
                    "ending_min": quartiles(cell.endings_min),
                }
                title = f"×{factor:g}, {name}"
                cells[title] = part(title, row | ({"misses": cell.misses} if options.misses else {}))
            goals += [
                goal(f"ended while slow, {name}", sum(c.early for c in of_factors.values()), 0, "alarms"),
                goal(f"active 12 h after the end, {name}", sum(c.late for c in of_factors.values()), 0, "alarms"),
                goal(f"size or cause stated outside the load, {name}", beyond.stated, 0, "samples"),
                goal(f"outside but not recognised, {name}", beyond.samples - beyond.recognised, 0, "samples"),
            ]
            cells[name] = part(name, {"outside": vars(beyond), "false_alarms_in_half_a_day": false_alarms})
    show("drift_sizes", goals, held_out=options.held_out, services=options.services, cells=cells)


if __name__ == "__main__":
    main()
