"""Falls of an engine's efficiency on the independent courses: those found and when, false alarms, and when alarms end.

    python -m bench.efficiency [--held-out] [--per-kind 3]

Readings of the page go through the product's own rows, measures and detector, one course after another. A person's verdict is in each
course: what must be found and within which time, and what must not be named.
"""

import argparse
import math
import time
from itertools import pairwise
from multiprocessing import Pool
from statistics import median
from typing import Any

from bench.independent.efficiency_courses import DAY_S, DEVELOPMENT, HELD_OUT, HOUR_S, SIGNALS, Course, Row, course
from bench.report import goal, part, show
from prober.config.configuration import DriftSpec
from prober.features.drift.efficiency import MEASURES, Efficiency

COLUMNS = {  # of a course, by total of the product
    "requests": "finished_requests",
    "prompt": "prompt_tokens",
    "generated": "generated_tokens",
    "queries": "prefix_queries",
    "hits": "prefix_hits",
    "drafted": "draft_tokens",
    "accepted": "accepted_tokens",
    "preemptions": "preemptions",
    "load_s": "offload_load_seconds",
    "load_gb": "offload_loads",  # blocks of one size
    "joules": "energy_joules",
    "joule_tokens": "generated_tokens",
    "step_s": "step_seconds",
    "steps": "steps",
}
SIGNAL_OF = {  # of a course, by measure
    "prefix_hit_ratio": "prefix_hit_share",
    "acceptance_ratio": "acceptance",
    "preemptions_per_request": "preemptions_per_request",
    "kv_load_seconds_per_gigabyte": "offload_load_s",
    "joules_per_token": "energy_per_token",
    "step_seconds": "step_s",
}
QUIET_ROWS_SHARE = 0.75  # of the hours: a course with fewer rows has little traffic


def totals(row: Row) -> dict[str, float]:
    """The totals that a reading of the page has."""
    known = {name: getattr(row, column) for name, column in COLUMNS.items()}
    return {name: value for name, value in known.items() if value is not None}


def events(played: Course) -> tuple[list[tuple[float, str, str]], float]:
    """((Unix seconds, event, signal) in a course, rows per hour). Totals that fall begin a new epoch, as on the page of an engine."""
    state, changes, rows = Efficiency(DriftSpec()), list(played.changes), 0
    found: list[tuple[float, str, str]] = []
    for before, now in pairwise(played.rows):
        while changes and changes[0].unix_s <= now.unix_s:
            state.changes.append((changes[0].unix_s, changes.pop(0).kind))
        last, present = totals(before), totals(now)
        if not last or not present or any(value < last.get(name, 0.0) for name, value in present.items()):
            continue
        grown = {name: value - last[name] for name, value in present.items() if name in last}
        findings = state.add(now.unix_s, grown, now.unix_s - before.unix_s)
        rows += findings is not None
        found += [(now.unix_s, str(event), SIGNAL_OF[measure.name]) for event, measure, _ in findings or ()]
    return found, rows * HOUR_S / (played.rows[-1].unix_s - played.rows[0].unix_s)


def judged(kind: str, index: int) -> dict[str, Any]:
    """A course against its verdict. delay_h: infinite if nothing of the verdict was found; recovery_h: after the end of the trouble"""
    played = course(kind, index)
    verdict, (found, rows_per_h) = played.verdict, events(played)
    begin_s = verdict.begin_unix_s if verdict.begin_unix_s is not None else math.inf
    end_s = verdict.end_unix_s if verdict.end_unix_s is not None else math.inf
    alarms = [(at_s, signal) for at_s, event, signal in found if event == "dropped"]
    right = [
        at_s
        for at_s, signal in alarms
        if signal in verdict.signals and at_s >= begin_s and verdict.demand != "must_not"
    ]
    allowed = (*verdict.signals, *verdict.consequences)
    false = [
        (round((at_s - played.rows[0].unix_s) / DAY_S, 1), signal)
        for at_s, signal in alarms
        if verdict.demand == "must_not" or at_s < begin_s or signal not in allowed or at_s > end_s + DAY_S
    ]
    ends = [at_s for at_s, event, signal in found if event != "dropped" and signal in verdict.signals and at_s >= end_s]
    delay_h = (right[0] - begin_s) / HOUR_S if right else math.inf
    return part(
        played.name,
        {
            "demand": verdict.demand,
            "delay_h": round(delay_h, 1),
            "latest_h": verdict.latest_delay_h,
            "false": false,
            "days": round((played.rows[-1].unix_s - played.rows[0].unix_s) / DAY_S, 1),
            "recovery_h": round((ends[0] - end_s) / HOUR_S, 1) if right and ends and right[0] < end_s else None,
            "rows_per_h": round(rows_per_h, 2),
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="falls of an engine's efficiency on the independent courses")
    parser.add_argument("--held-out", action="store_true", help="the half that nobody develops on")
    parser.add_argument("--per-kind", type=int, default=3, help="courses of each kind")
    arguments = parser.parse_args()
    assert {measure.name for measure in MEASURES} == set(SIGNAL_OF)
    assert set(SIGNAL_OF.values()) == set(SIGNALS)
    kinds, began_s = HELD_OUT if arguments.held_out else DEVELOPMENT, time.perf_counter()
    with Pool(2) as pool:
        courses = pool.starmap(
            judged, [(kind, index) for kind in kinds for index in range(arguments.per_kind)], chunksize=1
        )
    troubles = [of for of in courses if of["demand"] == "must_alarm"]
    neighbours = [of for of in courses if of["demand"] == "must_not"]
    late = [of for of in troubles if of["delay_h"] > of["latest_h"]]
    recoveries = {
        name: sorted(
            of["recovery_h"]
            for of in troubles
            if of["recovery_h"] is not None and (of["rows_per_h"] < QUIET_ROWS_SHARE) is is_quiet
        )
        for name, is_quiet in (("traffic in all hours", False), ("little traffic", True))
    }
    false, days = sum(len(of["false"]) for of in courses), sum(of["days"] for of in courses)
    goals = [
        goal("troubles not found in time", len(late) / len(troubles), 0.0, "share"),
        goal("false alarms", false / days * 30, 1.0, "per 30 days and target"),
        goal("neighbours named", sum(bool(of["false"]) for of in neighbours) / len(neighbours), 0.05, "share"),
        *(
            goal(f"median end of an alarm after the trouble, {name}", median(of), 24.0, "hours")
            for name, of in recoveries.items()
            if of
        ),
    ]
    delays = sorted(of["delay_h"] for of in troubles)
    raw = {"delays_h": delays, "recoveries_h": recoveries, "false": false, "days": round(days), "courses": len(courses)}
    show(
        "efficiency",
        goals,
        half="held out" if arguments.held_out else "development",
        **raw,
        seconds=round(time.perf_counter() - began_s),
    )


if __name__ == "__main__":
    main()
