"""Queues under a load that varies, and what becoming slower does to them: TTFTs whose truth is known.

Arrivals come from outside and know nothing of the service, as users do. Three textbook queues turn them into TTFTs:

- `fifo`: one server takes one request after another; TTFT is the wait and the own work (Lindley's recursion)
- `sharing`: all requests in the service share it equally, up to one server each (processor sharing, event by event)
- `slots`: so many requests at a time, each for the time of its whole answer; TTFT is the wait for a slot and the own work, which takes
  longer the more slots are taken

A change multiplies the work of every request that arrives after it, or the fixed overhead beside it (network, tokenizer). The same
arrivals and the same work can be sent through the service with and without the change: the ratio of the two is the truth that a
statement of its size has to hold.
"""

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MINUTE_S, DAY_S = 60.0, 86_400.0
PROBES_PER_S = 0.2
BEGIN_UNIX_S = 1_793_577_600.0  # a Monday
WALK_STEP = 0.02  # of the random walk, a minute: an hour moves it by 15%

Kind = Literal["fifo", "sharing", "slots"]
Place = Literal["work", "overhead"]


@dataclass(frozen=True, slots=True)
class Queue:
    """A service.

    users_per_s: mean arrivals beside the probes
    work_s, spread: mean and coefficient of variation of the work of a request, log-normal
    overhead_s: fixed time beside the work, with log-normal noise of 10%
    servers: that share the work, or slots
    answer_works: time in the slot after the first token, in works
    """

    kind: Kind
    users_per_s: float
    work_s: float
    spread: float
    overhead_s: float
    servers: int = 1
    answer_works: float = 0.0

    @property
    def busy_ratio(self) -> float:
        """Utilization at the mean load."""
        return (self.users_per_s + PROBES_PER_S) * self.work_s * (1 + self.answer_works) / self.servers


@dataclass(frozen=True, slots=True)
class Change:
    """Requests that arrive from `at_s` to `until_s` have `factor` times the work, or the overhead."""

    factor: float
    place: Place = "work"
    at_s: float = 0.0
    until_s: float = math.inf

    def factors(self, arrivals_s: Floats, place: Place) -> Floats:
        """Of each request."""
        is_changed = (arrivals_s >= self.at_s) & (arrivals_s < self.until_s) & (self.place == place)
        return np.where(is_changed, self.factor, 1.0)


NO_CHANGE = Change(1.0)


@dataclass(frozen=True, slots=True)
class Requests:
    """Arrivals in order, with what chance gives each of them. All of shape (requests,).

    work, overhead: relative to the mean
    is_probe: sent by the prober
    """

    arrivals_s: Floats
    work: Floats
    overhead: Floats
    is_probe: Bools


def daily(rng: Generator, variation: float, minutes: int) -> Floats:
    """Load relative to its mean, each minute: a sine of one day, ± `variation`."""
    return np.asarray(1 + variation * np.sin(2 * np.pi * (np.arange(minutes) * MINUTE_S / DAY_S + rng.random())))


def random_walk(rng: Generator, variation: float, minutes: int) -> Floats:
    """Load relative to its mean, each minute: a random walk between walls at ± `variation`."""
    if not variation:
        return np.ones(minutes)
    steps = rng.normal(0.0, WALK_STEP, minutes)
    steps[0] = rng.uniform(-variation, variation)
    folded = np.mod(np.cumsum(steps) + variation, 4 * variation)  # reflected at both walls
    return 1 - variation + np.where(folded > 2 * variation, 4 * variation - folded, folded)


SHAPES: dict[str, Callable[[Generator, float, int], Floats]] = {"daily": daily, "random walk": random_walk}


def queue(rng: Generator, kind: Kind, most_factor: float) -> Queue:
    """A service that is still stable at 1.4 times its mean load when its work takes `most_factor` times as long."""
    busiest = rng.uniform(0.5, 0.85)  # utilization then
    users, spread = rng.uniform(0.5, 1.5), rng.uniform(0.4, 1.0)
    servers, answer = {"fifo": (1, 0.0), "sharing": (2, 0.0), "slots": (int(rng.integers(6, 17)), 12.0)}[kind]
    work_s = busiest * servers / ((1.4 * users + PROBES_PER_S) * (1 + answer) * most_factor)
    return Queue(kind, users, work_s, spread, work_s * rng.uniform(0.2, 1.0), servers, answer)


def requests(rng: Generator, service: Queue, load: Floats, begin_s: float = 0.0) -> Requests:
    """A Poisson process with the rate of `load` (a value each minute) times that of the service, and the probes' beside it."""
    edges_s = begin_s + MINUTE_S * np.arange(load.size + 1)
    expected = np.concatenate(([0.0], np.cumsum(load * service.users_per_s * MINUTE_S)))
    users = np.interp(np.sort(rng.uniform(0.0, expected[-1], rng.poisson(expected[-1]))), expected, edges_s)
    span_s = edges_s[-1] - edges_s[0]
    probes = np.sort(rng.uniform(edges_s[0], edges_s[-1], rng.poisson(span_s * PROBES_PER_S)))
    arrivals = np.concatenate((users, probes))
    order = np.argsort(arrivals, kind="stable")
    sigma = math.sqrt(math.log1p(service.spread**2))
    return Requests(
        arrivals[order],
        rng.lognormal(-sigma * sigma / 2, sigma, arrivals.size),
        rng.lognormal(-0.005, 0.1, arrivals.size),
        order >= users.size,
    )


def ttfts_s(service: Queue, sent: Requests, change: Change = NO_CHANGE) -> Floats:
    """TTFT of each request, shape (requests,)."""
    work_s = sent.work * service.work_s * change.factors(sent.arrivals_s, "work")
    overhead_s = sent.overhead * service.overhead_s * change.factors(sent.arrivals_s, "overhead")
    served_s = {"fifo": _fifo, "sharing": _sharing, "slots": _slots}[service.kind](service, sent.arrivals_s, work_s)
    return served_s + overhead_s


def _fifo(_: Queue, arrivals_s: Floats, work_s: Floats) -> Floats:
    """Lindley: the server ends a request when it has done all work since it was last idle."""
    done = np.cumsum(work_s)
    return done + np.maximum.accumulate(arrivals_s - (done - work_s)) - arrivals_s


def _sharing(service: Queue, arrivals_s: Floats, work_s: Floats) -> Floats:
    """Every request present is served at the rate min(1, servers ÷ present), so that it leaves when the service that each has had
    since the start has grown by its work."""
    left_s = np.empty(arrivals_s.size)
    present: list[tuple[float, int]] = []
    now_s = served_s = 0.0
    servers = service.servers
    for number, (arrived_s, work) in enumerate(zip(arrivals_s.tolist(), work_s.tolist(), strict=True)):
        while present:
            slowness = max(1.0, len(present) / servers)
            ends_s = now_s + (present[0][0] - served_s) * slowness
            if ends_s > arrived_s:
                served_s += (arrived_s - now_s) / slowness
                break
            now_s = ends_s
            served_s, leaving = heapq.heappop(present)
            left_s[leaving] = now_s
        now_s = arrived_s
        heapq.heappush(present, (served_s + work, number))
    while present:
        slowness = max(1.0, len(present) / servers)
        now_s += (present[0][0] - served_s) * slowness
        served_s, leaving = heapq.heappop(present)
        left_s[leaving] = now_s
    return left_s - arrivals_s


def _slots(service: Queue, arrivals_s: Floats, work_s: Floats) -> Floats:
    """First come, first served; a request that finds k of n slots taken has 1 + k/n times the work before its first token."""
    first_s = np.empty(arrivals_s.size)
    taken: list[float] = []
    for number, (arrived_s, work) in enumerate(zip(arrivals_s.tolist(), work_s.tolist(), strict=True)):
        while taken and taken[0] <= arrived_s:
            heapq.heappop(taken)
        begins_s = arrived_s
        if len(taken) == service.servers:
            begins_s = heapq.heappop(taken)
        first_s[number] = begins_s + work * (1 + len(taken) / service.servers)
        heapq.heappush(taken, begins_s + work * (1 + service.answer_works))
    return first_s - arrivals_s


@dataclass(frozen=True, slots=True)
class Probes:
    """The prober's samples in order of time, each of shape (probes,).

    arrivals_per_s: requests that arrived in the minute before the last reading of the page, one every 5 s
    """

    unix_s: Floats
    ttft_s: Floats
    arrivals_per_s: Floats


def probes(sent: Requests, ttft_s: Floats) -> Probes:
    """What the prober sees of a service."""
    at_s = sent.arrivals_s[sent.is_probe]
    readings = at_s // 5.0 * 5.0
    arrived = np.searchsorted(sent.arrivals_s, readings) - np.searchsorted(sent.arrivals_s, readings - MINUTE_S)
    return Probes(BEGIN_UNIX_S + at_s, ttft_s[sent.is_probe], arrived / MINUTE_S)


class Truth:
    """Ratios of quantiles with a change to those without it, at the same arrivals, in the mean over chance.

    The same load, minute by minute, is replayed `repeats` times with other arrivals and other work, each time with the change and
    without it; every request counts, not only probes.
    """

    def __init__(
        self, rng: Generator, service: Queue, load: Floats, begin_s: float, change: Change, repeats: int = 6
    ) -> None:
        runs = [requests(rng, service, load, begin_s) for _ in range(repeats)]
        self._arrivals_s = np.concatenate([run.arrivals_s for run in runs])
        self._changed_s = np.concatenate([ttfts_s(service, run, change) for run in runs])
        self._usual_s = np.concatenate([ttfts_s(service, run) for run in runs])

    def ratio(self, q: float, from_s: float, to_s: float) -> float:
        """Of the quantile `q` over the requests that arrive between two moments."""
        window = (self._arrivals_s >= from_s) & (self._arrivals_s <= to_s)
        return float(np.quantile(self._changed_s[window], q) / np.quantile(self._usual_s[window], q))


def at_load(service: Queue, factor: float) -> Queue:
    """The same service with `factor` times the users."""
    return replace(service, users_per_s=factor * service.users_per_s)
