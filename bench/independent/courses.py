"""Courses of trouble for the diagnosis: a service that is healthy, in trouble and healthy again, as a prober sees it all the time.

    course = course("tuning", ("throttled",), 0, rate_per_s=1.0)
    for view in VIEWS:
        truth = course.truth(view)

The trouble is one of `causes_catalogue`, or two. Its severity rises until it is a clear breach: thresholds of SLOs lie between what is
usual and the trouble. A healthy hour has noise, a load that drifts as over a day, and single failures.
"""

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.random import Generator

from bench.independent.causes import FAILING_SHARE, MAX_UNANSWERED_SHARE, joint_wishes, severity_of, unanswered_share
from bench.independent.causes_catalogue import CAUSES, FAILURES, Case, Cause, Truth, joint_truth, signal_values
from bench.independent.causes_engines import KINDS, Half, Wishes, healthy_service, replace_rate
from bench.independent.causes_prober import WARM_UP_S
from bench.independent.causes_service import Record, as_seen, capacity_per_s, mean_kv_tokens, watch
from bench.independent.causes_situation import Failure, Machine, Situation, Users, Window
from prober.features.diagnosis.window import Hardware
from prober.measure.outcome import Outcome

HEALTHY_S, TROUBLE_S, RECOVERY_S, HOUR_S = 1200.0, 900.0, 420.0, 3600.0
MAX_PROBE_SHARE = 0.25  # of the capacity of the service that the probes take
MIN_RISE = 1.15  # between the quantiles that a threshold lies between
CLEAR = 5  # times its error budget that the trouble burns
MIN_DRIFT = 1.3  # factor on the median TTFT of warm probes, which a detector of drift sees after DRIFT_PROBES of them
DRIFT_PROBES = 20
LOOSE = 2.0  # factor on what is usual, for thresholds of signals that the trouble is not about
DRAWS = 30  # of engine and users, until the trouble is a clear breach
View = Literal["page and GPU", "page", "neither"]
VIEWS: tuple[View, ...] = ("page and GPU", "page", "neither")


@dataclass(frozen=True, slots=True)
class Objective:
    """At least the share `quantile` of the events of a signal is good, up to `threshold_s` (None for `success`)."""

    signal: str
    threshold_s: float | None
    quantile: float


@dataclass(frozen=True, slots=True)
class Course:
    """Observations of consecutive windows, which begin at WARM_UP_S.

    causes: that act in the second window, none in a healthy course
    failure: of that window
    drift_s: from when to when the warm probes' TTFT is reported to have drifted: lost prefixes seldom breach an SLO that holds for
        cold probes
    """

    name: str
    causes: tuple[Cause, ...]
    machine: Machine
    windows: tuple[Window, ...]
    ends_s: tuple[float, ...]
    objectives: tuple[Objective, ...]
    hardware: Hardware
    failure: Failure | None = None
    drift_s: tuple[float, float] | None = None

    def seen(self, view: View) -> tuple[Window, ...]:
        """The windows without what this prober does not read."""
        return tuple(as_seen(window, _machine(self.machine, view)) for window in self.windows)

    def truth(self, view: View) -> Truth:
        """The names of the trouble, for this prober."""
        truth = joint_truth(self.causes, _machine(self.machine, view), self.windows[0])
        if self.causes and unanswered_share(self.windows[1]) > FAILING_SHARE:
            truth = replace(truth, true=truth.true | {"failing"} - truth.right)
        return truth


def _machine(machine: Machine, view: View) -> Machine:
    return replace(
        machine,
        page=None if view == "neither" else machine.page,
        has_gpu_readings=view == "page and GPU",
    )


def course(half: Half, names: tuple[str, ...], index: int, rate_per_s: float) -> Course:
    """Trouble of some causes of `CAUSES` and `FAILURES`, probed at this rate.

    Raises:
        LookupError: no draw of engine and users is a clear breach
    """
    name = f"{half}/{'+'.join(names)}/{index}"
    catalogue = CAUSES | FAILURES
    causes = tuple(catalogue[cause] for cause in names)
    for rng, before, hardware in _services(name, half, joint_wishes([cause.wishes for cause in causes]), rate_per_s):
        case = Case(rng, mean_kv_tokens(before, rng), capacity_per_s(before, rng))
        after: Situation | None = before
        for cause in causes:
            severity = severity_of(before, cause, case, partial(_is_clear, cause), 1 / rate_per_s)
            after = None if severity is None or after is None else cause.apply(after, severity, case)
        if after is None:
            continue
        times_s = (WARM_UP_S, WARM_UP_S + HEALTHY_S, WARM_UP_S + HEALTHY_S + TROUBLE_S)
        ends_s = (*times_s[1:], times_s[-1] + RECOVERY_S)
        spans = ((0.0, ends_s[0], before), (*ends_s[:2], after), (ends_s[1], math.inf, before))
        windows = watch(_finite(spans), tuple(zip(times_s, ends_s, strict=True)), rng, 1 / rate_per_s)
        record = Record(*windows[:2])
        is_true = len(causes) > 1 or causes[0].acts(record, after)
        objectives = _objectives(record, causes, rng)
        if is_true and objectives and unanswered_share(record.trouble) <= MAX_UNANSWERED_SHARE:
            delay_s = DRIFT_PROBES / (0.5 * rate_per_s)
            drift_s = (ends_s[0] + delay_s, ends_s[1] + delay_s) if _drifts(record) else None
            return Course(
                name, causes, before.machine, tuple(windows), ends_s, objectives, hardware, after.failure, drift_s
            )
    raise LookupError(f"{name} at {rate_per_s}/s: no clear breach in {DRAWS} draws")


def healthy_hour(half: Half, index: int, rate_per_s: float) -> Course:
    """An hour without trouble: the load drifts by up to 30%, and three of a thousand probes fail."""
    name = f"{half}/healthy/{index}"
    rng, before, hardware = next(_services(name, half, Wishes(utilization=(0.2, 0.4)), rate_per_s))
    failure = Failure(Outcome.HTTP_5XX, "HTTP 502: bad gateway", 0.003)
    begins_s = np.arange(0.0, WARM_UP_S + HOUR_S, 300.0)
    drift = 1 + 0.3 * np.sin(2 * np.pi * (begins_s / (2 * HOUR_S) + rng.random()))
    situations = [
        replace(replace_rate(before, before.users.rate_per_s * factor), failure=failure) for factor in drift.tolist()
    ]
    end_s = WARM_UP_S + HOUR_S
    ends_s = [*begins_s[1:].tolist(), math.inf]
    spans = _finite(tuple(zip(begins_s.tolist(), ends_s, situations, strict=True)))
    windows = watch(spans, ((WARM_UP_S, end_s),), rng, 1 / rate_per_s)
    factor = float(rng.choice([1.03, 1.5]))
    objectives = (
        *(_loose(windows[0], signal, factor) for signal in ("ttft", "tpot")),
        Objective("success", None, 0.99),
    )
    return Course(name, (), before.machine, tuple(windows), (end_s,), objectives, hardware)


def _finite(spans: Sequence[tuple[float, float, Situation]]) -> tuple[tuple[float, float, Situation], ...]:
    """The spans, the last of which ends when nothing is looked at any more."""
    begin_s, _, situation = spans[-1]
    return (*spans[:-1], (begin_s, begin_s + 600.0, situation))


def _services(
    name: str, half: Half, wishes: Wishes, rate_per_s: float
) -> Iterator[tuple[Generator, Situation, Hardware]]:
    """Services that probes at this rate load a little. Many probes are short, and their service has two replicas."""
    kinds = KINDS[half]
    if rate_per_s > 2:
        wishes = replace(wishes, replicas=max(2, wishes.replicas))
    for draw in range(DRAWS):
        seed = zlib.crc32(f"{name}/{rate_per_s}".encode())
        rng = np.random.default_rng([seed, draw])
        kind = kinds[(seed + draw) % len(kinds)]
        situation, hardware = healthy_service(kind, wishes, rng)
        machine = replace(situation.machine, page=kind.page)
        if rate_per_s > 0.5:
            short, long = (tokens // 4 for tokens in machine.probe_tokens)
            machine = replace(machine, probe_tokens=(short, long))
        users = Users(1.0, prompt_tokens=float(np.mean(machine.probe_tokens)), output_tokens=44.0)
        situation = replace(situation, machine=machine)
        if rate_per_s <= MAX_PROBE_SHARE * capacity_per_s(replace(situation, users=users), rng):
            yield rng, situation, hardware


def _loose(window: Window, signal: str, factor: float) -> Objective:
    return Objective(signal, factor * float(np.quantile(signal_values(window.probes, signal), 0.975)), 0.95)


def _limits(record: Record, signal: str, quantile: float) -> tuple[float, float] | None:
    """Ends of the thresholds that the healthy service meets easily and the trouble misses clearly, None if there are none."""
    usual, trouble = (signal_values(window.probes, signal) for window in record)
    if min(len(usual), len(trouble)) < 20:
        return None
    budget = 1 - quantile
    low_s, high_s = float(np.quantile(usual, 1 - budget / 2)), float(np.quantile(trouble, 1 - CLEAR * budget))
    return (low_s, high_s) if high_s >= MIN_RISE * low_s else None


def _drifts(record: Record) -> bool:
    """Whether warm probes take clearly longer, and cold ones do not."""
    (warm, now_warm), (cold, now_cold) = (
        [
            signal_values([probe for probe in window.probes if probe.workload.endswith("_warm") is is_warm], "ttft")
            for window in record
        ]
        for is_warm in (True, False)
    )
    if min(len(warm), len(now_warm), len(cold), len(now_cold)) < DRIFT_PROBES:
        return False
    is_slower = np.median(now_warm) >= MIN_DRIFT * np.median(warm)
    return bool(is_slower and np.median(now_cold) < MIN_DRIFT * np.median(cold))


def _is_clear(cause: Cause, record: Record) -> bool:
    """Whether the trouble breaches SLOs of its signals clearly, or a lost prefix is a drift. Failures always are a breach."""
    breaches = any(_limits(record, signal, cause.quantile) for signal in cause.signals)
    return not cause.signals or breaches or ("prefix_miss" in cause.right and _drifts(record))


def _objectives(record: Record, causes: Sequence[Cause], rng: Generator) -> tuple[Objective, ...]:
    """SLOs of success, TTFT and TPOT, and of the signals that the trouble is about; none if it is no clear breach."""
    if not any(_is_clear(cause, record) for cause in causes):
        return ()
    quantiles = {signal: cause.quantile for cause in causes for signal in cause.signals}
    objectives = [Objective("success", None, 0.99)]
    for signal in sorted({"ttft", "tpot", *quantiles}):
        limits = _limits(record, signal, quantiles[signal]) if signal in quantiles else None
        if limits is None:
            objectives.append(_loose(record.healthy, signal, LOOSE))
        else:
            threshold_s = limits[0] * (limits[1] / limits[0]) ** float(rng.uniform(0.2, 0.9))
            objectives.append(Objective(signal, threshold_s, quantiles[signal]))
    return tuple(objectives)
