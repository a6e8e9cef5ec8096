"""Diagnosis over time: trouble on engines written apart from it is played to `TargetDiagnosis`. When is it named, and how rightly?

A course is 20 minutes of a healthy service, 15 of trouble and 7 of recovery, at 0.2, 1 and 4 probes/s, evaluated every 15 s. Each is
played three times: with the engine's page and GPU readings, with the page, and with probes only. The truth was written with the scene
(`bench/independent/causes_catalogue.py`); where no expert could tell with the same readings, only wrong names count. The breach begins
when an SLO's budget burns three times too fast over five minutes, and a name is wanted as long as it does. A healthy hour has a load
that drifts and single failures.

python -m bench.diagnosis_over_time [--held-out] [--causes a,b+c,healthy] [--rates 0.2,1] [--courses N] [--processes N]
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from multiprocessing import Pool
from operator import methodcaller
from typing import Any, cast

import numpy as np

from bench.independent.causes_catalogue import CAUSES, FAILURES, PAIRS, Truth
from bench.independent.causes_engines import Half
from bench.independent.causes_prober import FIRST_TOKEN_TIMEOUT_S, START_NS, START_UNIX_S, WARM_UP_S
from bench.independent.courses import VIEWS, Course, View, course, healthy_hour
from bench.report import goal, show
from prober.config.load import load
from prober.config.target import TargetSpec
from prober.daemon.registry import registry
from prober.features.diagnosis.monitor import DiagnosisMonitor, TargetDiagnosis
from prober.measure.engine_signals import PageReading
from prober.measure.objective import Slo, count_events
from prober.measure.result import ProbeResult
from prober.net.clock import Clock
from prober.probing.history import EventLog
from prober.probing.observer import ObservedTarget
from prober.probing.target import Target

EVALUATE_EVERY_S, BURN_WINDOW_S, BURN_RATE, MIN_BAD = 15.0, 300.0, 3, 3
RATES = (0.2, 1.0, 4.0)
GONE_AFTER_S = 300.0  # of the end of the trouble
HEALTHY = "healthy"


class SetClock:
    """A clock that the play sets."""

    ns = START_NS

    def unix_s(self) -> float:
        """Seconds of the wall clock."""
        return START_UNIX_S + (self.ns - START_NS) / 1e9

    def now_ns(self) -> int:
        """Nanoseconds of the monotonic clock."""
        return self.ns


@dataclass(frozen=True, slots=True)
class Play:
    """Names given in one view of a course. Times in seconds.

    samples: (time, names) of each evaluation; None: no trouble was seen
    change_s, restored_s: when the trouble begins and ends; None for a healthy course
    burning_s: the times of evaluation between these at which it burns an SLO's budget, the first of which is the breach
    """

    title: str
    rate_per_s: float
    view: View
    truth: Truth
    samples: tuple[tuple[float, tuple[str, ...] | None], ...]
    change_s: float | None = None
    restored_s: float = 0.0
    burning_s: tuple[float, ...] = ()

    @property
    def breach_s(self) -> float:
        """When the SLO is breached."""
        return self.burning_s[0]

    @property
    def limit_s(self) -> float:
        """Time from the breach in which the trouble is to be named."""
        return 120.0 if self.rate_per_s >= 1 else 600.0

    def kinds(self, begin_s: float, end_s: float) -> list[str]:
        """Verdicts on the samples of a span; `silent` where no trouble was seen."""
        return [
            "silent" if names is None else self.truth.verdict(names)
            for at_s, names in self.samples
            if begin_s <= at_s < end_s
        ]

    def named(self, begin_s: float, end_s: float) -> list[tuple[str, ...]]:
        """What was named in a span, `unknown` apart."""
        given = [names for at_s, names in self.samples if begin_s <= at_s < end_s]
        return [names for names in given if names is not None and set(names) - {"unknown"}]

    @property
    def named_after_s(self) -> float | None:
        """From the breach to the first right name; None: there was none. Below 0 if it came before the breach."""
        assert self.change_s is not None
        right = [
            at_s
            for at_s, names in self.samples
            if self.change_s <= at_s < self.restored_s and names and self.truth.verdict(names) == "right"
        ]
        return right[0] - self.breach_s if right else None

    @property
    def after(self) -> list[str]:
        """Verdicts while the SLO is breached, from the first right name on, at the latest from the limit on."""
        named_s = self.named_after_s
        begin_s = self.breach_s + (self.limit_s if named_s is None else min(named_s, self.limit_s))
        return [kind for at_s in self.burning_s if at_s >= begin_s for kind in self.kinds(at_s, at_s + 1)]

    @property
    def is_late(self) -> bool:
        """Whether no right name came in time."""
        return self.named_after_s is None or self.named_after_s > self.limit_s

    @property
    def wrong(self) -> list[str]:
        """Verdicts from the change on, and names from before it, when every name is wrong."""
        assert self.change_s is not None
        before = ["wrong"] * len(self.named(0.0, self.change_s))
        return [*before, *self.kinds(self.change_s, self.restored_s)]

    @property
    def lingers(self) -> bool:
        """Whether a name stands for longer than GONE_AFTER_S after the trouble."""
        return bool(self.named(self.restored_s + GONE_AFTER_S, self.samples[-1][0] + 1))


def spec(of: Course, rate_per_s: float, view: View) -> TargetSpec:
    """Configuration of the prober."""
    slos = [
        f"{objective.signal}: {{signal: {objective.signal}, objective: {objective.quantile:%}"
        + (f", threshold: {objective.threshold_s * 1e6:.0f}us}}" if objective.threshold_s is not None else "}")
        for objective in of.objectives
    ]
    model = of.hardware.model
    bound = (
        f", decode_bound: {{active_parameters: {model.active_parameters}, bytes_per_weight: {model.bytes_per_weight}, "
        f"kv_bytes_per_token: {model.kv_bytes_per_token}, gpus: {of.hardware.gpus}, "
        f"memory_bandwidth: {of.hardware.memory_bandwidth_bytes_per_s}}}"
    )
    text = (
        f"slos: {{{', '.join(slos)}}}\n"
        f"targets: [{{name: t, url: 'http://h', probes: [{{workload: probe, rate: {rate_per_s:g}/s}}]"
        f"{bound if view == 'page and GPU' else ''}}}]\n"
    )
    return load(text, source="bench", engines=(), environment={}, read=lambda path: path).targets[0]


def ended_s(probe: ProbeResult) -> float:
    """When a probe ended, on the clock of the course."""
    line = probe.timeline
    last_ns = line.end_ns or max((line.headers_ns or 0, *line.content_ns[-1:]), default=0)
    if probe.outcome.startswith("timeout"):
        last_ns = line.intended_ns + round(FIRST_TOKEN_TIMEOUT_S * 1e9)
    return (max(last_ns, line.intended_ns) - START_NS) / 1e9


def play(of: Course, rate_per_s: float, view: View) -> tuple[tuple[float, tuple[str, ...] | None], ...]:
    """The names that the product gives at each evaluation."""
    clock = SetClock()
    monitor = DiagnosisMonitor(registry(), EventLog())
    target = ObservedTarget(Target(spec(of, rate_per_s, view), cast(Clock, clock)), (monitor.observe,))
    diagnosis = target.find(TargetDiagnosis)
    assert diagnosis is not None
    samples = []
    for at_s, event in _events(of, view):
        clock.ns = START_NS + round(at_s * 1e9)
        if event is None:
            diagnosis.evaluate()
            samples.append((at_s, None if diagnosis.diagnosis is None else tuple(diagnosis.diagnosis.regimes)))
        else:
            event(diagnosis)
    return tuple(samples)


Event = Callable[[TargetDiagnosis], None]


def _events(of: Course, view: View) -> Iterator[tuple[float, Event | None]]:
    """(time, call of a method of the observer) in order; None: evaluate."""
    events: list[tuple[float, int, Event | None]] = []
    for number, (window, all_seen) in enumerate(zip(of.seen(view), of.windows, strict=True)):
        hides_page = number == 1 and of.failure is not None and of.failure.hides_page
        events += [(ended_s(probe), 0, methodcaller("probe_ended", probe)) for probe in window.probes]
        for at_s, signals in window.readings:
            reading = None if hides_page else PageReading(round(at_s * 1e9), 0, signals)
            events.append((at_s - START_NS / 1e9, 1, methodcaller("page_read", reading)))
        if window.devices:
            for (at_s, _), devices in zip(all_seen.readings, window.devices, strict=True):
                events.append((at_s - START_NS / 1e9, 2, methodcaller("gpus_read", devices, "550.54")))
    for at_s, active in zip(of.drift_s or (), (True, False), strict=False):
        events.append((at_s, 0, methodcaller("drifted", "probe_warm", "ttft", active=active)))
    at_s = WARM_UP_S + EVALUATE_EVERY_S
    while at_s <= of.ends_s[-1]:
        events.append((at_s, 3, None))
        at_s += EVALUATE_EVERY_S
    return ((at_s, event) for at_s, _, event in sorted(events, key=lambda event: event[:2]))


def burning_s(of: Course) -> tuple[float, ...]:
    """The evaluations during the trouble at which the burn rate of an SLO is BURN_RATE over BURN_WINDOW_S, or a drift is reported."""
    probes = sorted(
        ((ended_s(probe), probe) for window in of.windows for probe in window.probes), key=lambda end: end[0]
    )
    ends_s = np.array([end_s for end_s, _ in probes])
    begin_s, end_s = of.ends_s[:2] if of.causes else (WARM_UP_S, of.ends_s[0])
    times_s = np.arange(begin_s + EVALUATE_EVERY_S, end_s, EVALUATE_EVERY_S)
    first, last = (np.searchsorted(ends_s, times, "right") for times in (times_s - BURN_WINDOW_S, times_s))
    burns = times_s >= (of.drift_s[0] if of.drift_s else np.inf)
    for objective in of.objectives:
        signal: Any = objective.signal
        slo = Slo(signal, signal, objective.threshold_s, Decimal(str(objective.quantile)), 30 * 86_400.0)
        totals = np.cumsum([(0, 0), *(count_events(slo, probe) for _, probe in probes)], axis=0)
        events, bad = (totals[last] - totals[first]).T
        burns |= (bad >= MIN_BAD) & (bad > BURN_RATE * float(slo.error_budget_ratio) * events)
    return tuple(times_s[burns].tolist())


@dataclass(frozen=True, slots=True)
class Task:
    """A course to play."""

    half: Half
    names: tuple[str, ...]
    index: int
    rate_per_s: float


def plays(task: Task) -> list[Play] | str:
    """All views of a course; words if there is none."""
    title = "+".join(task.names)
    if task.names == (HEALTHY,):
        of = healthy_hour(task.half, task.index, task.rate_per_s)
        return [
            Play(title, task.rate_per_s, view, Truth(frozenset()), play(of, task.rate_per_s, view)) for view in VIEWS
        ]
    try:
        of = course(task.half, task.names, task.index, task.rate_per_s)
    except LookupError as problem:
        return str(problem)
    burning = burning_s(of)
    if not burning:
        return f"{of.name} at {task.rate_per_s}/s: no breach"
    return [
        Play(
            title,
            task.rate_per_s,
            view,
            of.truth(view),
            play(of, task.rate_per_s, view),
            of.ends_s[0],
            of.ends_s[1],
            burning,
        )
        for view in VIEWS
    ]


def share(values: Sequence[Any], wanted: Any) -> float:
    """Share of the values that are `wanted`; 0 of none."""
    return round(sum(value == wanted for value in values) / len(values), 4) if values else 0.0


def summary(rows: Sequence[Play]) -> dict[str, Any]:
    """Figures of plays with trouble: those that are visible, and wrong names of all."""
    visible = [row for row in rows if row.truth.is_visible]
    names = Counter(" and ".join(names) for row in rows for names in row.named(row.change_s or 0.0, row.restored_s))
    samples = [kind for row in rows for kind in row.wrong]
    return {
        "plays": len(rows),
        "visible": len(visible),
        "late": sum(row.is_late for row in visible),
        "named_after_s": [row.named_after_s for row in visible],
        "right_after": share([kind for row in visible for kind in row.after], "right"),
        "wrong": share(samples, "wrong"),
        "silent": share(samples, "silent"),
        "lingers": sum(row.lingers for row in rows),
        "names": dict(names.most_common(5)),
    }


def by_title(rows: Sequence[Play]) -> dict[str, Any]:
    """Summaries by trouble and rate."""
    keys = dict.fromkeys((row.title, row.rate_per_s) for row in rows)
    return {
        f"{title} at {rate_per_s:g}/s": summary(
            [row for row in rows if (row.title, row.rate_per_s) == (title, rate_per_s)]
        )
        for title, rate_per_s in sorted(keys)
    }


def goals(half: Half, rows: Sequence[Play]) -> list[dict[str, Any]]:
    """The goals of the diagnosis."""
    healthy = [row for row in rows if row.change_s is None]
    single, double = ([row for row in rows if row.change_s is not None and row.truth.causes == n] for n in (1, 2))
    visible = [row for row in single if row.truth.is_visible]
    right_after = share([kind for row in visible for kind in row.after], "right")
    wrong = [share([kind for row in some for kind in row.wrong], "wrong") for some in (single, double)]
    return [
        goal(f"not named right in time, visible, {half}", share([row.is_late for row in visible], True), 0.1, "share"),
        goal(f"samples after that not right, visible, {half}", 1 - right_after, 0.1, "share"),
        goal(f"samples wrong, one cause, {half}", wrong[0], 0.02, "share"),
        goal(f"samples wrong, two causes, {half}", wrong[1], 0.05, "share"),
        goal(f"named in a healthy hour, {half}", sum(bool(row.named(0.0, 1e9)) for row in healthy), 0, "plays"),
        goal(f"named 5 minutes after the trouble, {half}", sum(row.lingers for row in (*single, *double)), 0, "plays"),
    ]


def tasks(half: Half, wanted: Sequence[tuple[str, ...]], rates: Sequence[float], courses: int) -> list[Task]:
    """Courses of all troubles at all rates."""
    return [Task(half, names, index, rate_per_s) for names, rate_per_s, index in product(wanted, rates, range(courses))]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--held-out", action="store_true", help="the half that no rule was looked at on")
    parser.add_argument("--causes", help="names, `a+b` for two at once, `healthy`; absent: all")
    parser.add_argument("--rates", default=",".join(f"{rate:g}" for rate in RATES), help="probes per second")
    parser.add_argument("--courses", type=int, default=1, help="of each trouble and rate")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    half: Half = "held_out" if options.held_out else "tuning"
    everything = [(HEALTHY,), *((name,) for name in (*FAILURES, *CAUSES)), *PAIRS[half]]
    wanted = [tuple(names.split("+")) for names in options.causes.split(",")] if options.causes else everything
    rates = [float(rate) for rate in options.rates.split(",")]
    rows: list[Play] = []
    impossible: list[str] = []
    with Pool(options.processes) as pool:
        for played in pool.imap_unordered(plays, tasks(half, wanted, rates, options.courses)):
            if isinstance(played, str):
                impossible.append(played)
                print(played, file=sys.stderr)
                continue
            rows += played
            for row in played:
                print(row.title, row.rate_per_s, row.view, describe(row), file=sys.stderr)
    trouble = [row for row in rows if row.change_s is not None]
    show(
        "diagnosis_over_time",
        goals(half, rows),
        half=half,
        by_view={view: summary([row for row in trouble if row.view == view]) for view in VIEWS},
        by_trouble=by_title(trouble),
        impossible=impossible,
    )


def describe(row: Play) -> str:
    """A line for people."""
    if row.change_s is None:
        return f"named {len(row.named(0.0, 1e9))} of {len(row.samples)}"
    runs: list[str] = []
    for kind in row.kinds(row.change_s, row.samples[-1][0] + 1):
        if runs and runs[-1].split("*")[0] == kind:
            runs[-1] = f"{kind}*{int(runs[-1].split('*')[1]) + 1}"
        else:
            runs.append(f"{kind}*1")
    names = Counter(" and ".join(names) for names in row.named(row.change_s, row.restored_s))
    sight = "" if row.truth.is_visible else " hidden"
    return f"breach {row.breach_s - row.change_s:.0f} named {row.named_after_s}{sight} {dict(names)} {' '.join(runs)}"


if __name__ == "__main__":
    main()
