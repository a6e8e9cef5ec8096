"""Orders in which a server takes requests, replayed one by one: TTFTs of requests that wait for each other."""

import heapq
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

Discipline = Literal["in order", "slots", "priority", "shortest", "shared"]

PROBES_PER_S = 0.2
PEAK_BUSY = (0.5, 0.66)  # utilization at the peak: 1.3 times as much is stable, if the load fluctuates too
NETWORK_SHARE = (0.02, 0.15)  # of the mean work
SLOT_ANSWER = (4.0, 12.0)  # works in a slot after the first token


@dataclass(frozen=True, slots=True)
class Jobs:
    """Work for a service in order of arrival, each of shape (jobs,).

    work_s: until the first token; in slots, the slot is taken for `hold` times as long
    goes_first: of the class that goes before the other
    is_of_engine: a change of the engine changes its work; others are pauses, and no requests
    network_s: on the way, beside the work
    """

    discipline: Discipline
    slots: int
    hold: float
    arrivals_s: Floats
    work_s: Floats
    network_s: Floats
    goes_first: Bools
    is_probe: Bools
    is_of_engine: Bools

    @property
    def requests_s(self) -> Floats:
        """Arrivals of the requests."""
        return self.arrivals_s[self.is_of_engine]

    def between(self, begin_s: float, end_s: float) -> "Jobs":
        """Those that arrive in a span."""
        part = slice(*np.searchsorted(self.arrivals_s, (begin_s, end_s)).tolist())
        return replace(
            self,
            arrivals_s=self.arrivals_s[part],
            work_s=self.work_s[part],
            network_s=self.network_s[part],
            goes_first=self.goes_first[part],
            is_probe=self.is_probe[part],
            is_of_engine=self.is_of_engine[part],
        )

    def probes(self, first_s: Floats) -> tuple[Floats, Floats]:
        """Arrivals of the probes, and their TTFT by the times of first tokens of all jobs."""
        ttft_s = first_s - self.arrivals_s + self.network_s
        return self.arrivals_s[self.is_probe], ttft_s[self.is_probe]


def service_of(
    rng: Generator,
    discipline: Discipline,
    arrivals_s: Floats,
    work: Floats,
    probes_s: Floats,
    activity: Floats,
    slots: int = 1,
    first: Bools | None = None,
    others: tuple[Floats, Floats] | None = None,
    probe_work: float = 0.5,
    busy: tuple[float, float] = PEAK_BUSY,
) -> Jobs:
    """A service of random speed that is stable, also when it is 1.3 times slower, at the activity of the users.

    work: of the users, in any unit
    activity: of the users, by minute
    others: arrivals and work of pauses
    probe_work: of a probe, in means of the users'
    busy: bounds of the utilization at the 98th percentile of the activity
    """
    pauses_s, pauses = (np.empty(0), np.empty(0)) if others is None else others
    times = np.concatenate((arrivals_s, probes_s, pauses_s))
    kinds = np.repeat([0, 1, 2], [arrivals_s.size, probes_s.size, pauses_s.size])
    probe_works = probe_work * np.exp(0.08 * rng.standard_normal(probes_s.size))
    works = np.concatenate((work / work.mean(), probe_works, pauses))
    order = np.argsort(times, kind="stable")
    hold = 1 + rng.uniform(*SLOT_ANSWER) if discipline == "slots" else 1.0
    span_s = times.max() - times.min()
    peak = float(np.quantile(activity, 0.98)) / float(activity.mean())
    offered = (peak * arrivals_s.size + probe_work * probes_s.size + pauses.sum()) / span_s
    mean_s = rng.uniform(*busy) * slots / (offered * hold)
    goes_first = np.zeros(times.size, dtype=np.bool_)
    if first is not None:
        goes_first[: first.size] = first
    network_s = mean_s * rng.uniform(*NETWORK_SHARE) * np.exp(0.1 * rng.standard_normal(times.size))
    return Jobs(
        discipline,
        slots,
        hold,
        times[order],
        mean_s * works[order],
        network_s,
        goes_first[order],
        kinds[order] == 1,
        kinds[order] != 2,
    )


def first_tokens_s(jobs: Jobs) -> Floats:
    """Times of the first tokens, shape (jobs,)."""
    return {"in order": _in_order, "slots": _slots, "priority": _priority, "shortest": _shortest, "shared": _shared}[
        jobs.discipline
    ](jobs)


def _in_order(jobs: Jobs) -> Floats:
    """Lindley's recursion: done when all work since the server was last idle is done."""
    done = np.cumsum(jobs.work_s)
    return np.asarray(done + np.maximum.accumulate(jobs.arrivals_s - (done - jobs.work_s)))


def _slots(jobs: Jobs) -> Floats:
    """First come, first served, with several slots."""
    begins_s = np.empty(jobs.arrivals_s.size)
    free_s = [0.0] * jobs.slots
    held_s = (jobs.work_s * jobs.hold).tolist()
    for number, (arrival_s, hold_s) in enumerate(zip(jobs.arrivals_s.tolist(), held_s, strict=True)):
        begin_s = max(arrival_s, free_s[0])
        heapq.heapreplace(free_s, begin_s + hold_s)
        begins_s[number] = begin_s
    return begins_s + jobs.work_s


def _priority(jobs: Jobs) -> Floats:
    """Two classes, each in order; what has begun is ended."""
    return _one_by_one(jobs, (~jobs.goes_first).astype(np.float64))


def _shortest(jobs: Jobs) -> Floats:
    """The job with the least work of those that wait; what has begun is ended."""
    return _one_by_one(jobs, jobs.work_s)


def _one_by_one(jobs: Jobs, key: Floats) -> Floats:
    """One server; of those that wait the job with the least key is next, and among equal ones the earliest."""
    first_s = np.empty(jobs.arrivals_s.size)
    arrivals, works, keys = jobs.arrivals_s.tolist(), jobs.work_s.tolist(), key.tolist()
    waiting: list[tuple[float, int]] = []
    free_s = 0.0
    for number, arrival_s in enumerate(arrivals):
        while waiting and free_s <= arrival_s:
            _, job = heapq.heappop(waiting)
            free_s = first_s[job] = max(free_s, arrivals[job]) + works[job]
        heapq.heappush(waiting, (keys[number], number))
    while waiting:
        _, job = heapq.heappop(waiting)
        free_s = first_s[job] = max(free_s, arrivals[job]) + works[job]
    return first_s


def _shared(jobs: Jobs) -> Floats:
    """All that are present share the server equally: each leaves when the service that each has had since the start has grown by
    its work. A first token comes at the end of the work."""
    left_s = np.empty(jobs.arrivals_s.size)
    present: list[tuple[float, int]] = []
    now_s = served_s = 0.0
    for number, (arrival_s, work_s) in enumerate(zip(jobs.arrivals_s.tolist(), jobs.work_s.tolist(), strict=True)):
        while present and now_s + (present[0][0] - served_s) * len(present) <= arrival_s:
            now_s += (present[0][0] - served_s) * len(present)
            served_s, job = heapq.heappop(present)
            left_s[job] = now_s
        if present:
            served_s += (arrival_s - now_s) / len(present)
        now_s = arrival_s
        heapq.heappush(present, (served_s + work_s, number))
    while present:
        now_s += (present[0][0] - served_s) * len(present)
        served_s, job = heapq.heappop(present)
        left_s[job] = now_s
    return left_s
