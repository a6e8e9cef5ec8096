"""Scenes of a latency signal on odd services and odd days, each with the time at which the engine becomes slower.

    scene = scene("batches", 0, traces=None)
    after = scene.slower(scene.moments_s[0])

A probe every 5 s. Arrivals come from outside and know nothing of the service; the load that the prober sees is arrivals per second in
the minute before the last reading of the page. A change multiplies the engine's own time, and queues follow it.

Two forms of service: a queue that is replayed request by request (`heavy` kinds: waits are most of the latency of a bad percentile),
and a light one, whose waits are drawn from the formula of M/M/1 at the utilization of the moment.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from bench.independent.disciplines import Jobs, first_tokens_s, service_of
from bench.independent.workloads import read_trace

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Group = Literal["heavy queues", "after an odd week", "after a faster model", "other rest days", "recurring"]

INTERVAL_S, MINUTE_S, HOUR_S, DAY_S = 5.0, 60.0, 3_600.0, 86_400.0
BEGIN_UNIX_S = 1_796_601_600.0  # 2026-12-07 00:00 UTC, a Monday
SLOWER = 1.3
SEARCH_S = 8 * HOUR_S
SETTLE_S = 2 * HOUR_S  # of the replay before a change, so that its queue is that of the service
LEARNT_DAYS = 8.0


@dataclass(frozen=True, slots=True)
class Slower:
    """The probes of the hours after a change. All of shape (probes,)."""

    unix_s: Floats
    ttft_s: Floats
    load: Floats


@dataclass(frozen=True)
class Scene:
    """Probes of a service that does not become slower, and times at which it may.

    unix_s, ttft_s: of the probes that were answered, shape (probes,)
    load: arrivals per second in the minute before the last reading of the page, shape (probes,)
    moments_s: since the start
    slower: the probes from such a moment on, if the engine's own time is `SLOWER` times as long from then on
    """

    unix_s: Floats
    ttft_s: Floats
    load: Floats
    moments_s: tuple[float, ...]
    slower: Callable[[float], Slower] = field(repr=False)

    @property
    def days(self) -> float:
        """Length."""
        return float(self.unix_s[-1] - self.unix_s[0]) / DAY_S


@dataclass(frozen=True, slots=True)
class Calendar:
    """Minutes of a scene in the local time of the users, all of shape (minutes,).

    hour: 0 to 24
    weekday: 0 is Monday
    day: local days since that of the start
    zone_s: local time less UTC
    """

    hour: Floats
    weekday: NDArray[np.int64]
    day: NDArray[np.int64]
    zone_s: float
    begin_unix_s: float

    @property
    def size(self) -> int:
        """Number of minutes."""
        return self.hour.size


def calendar(rng: Generator, days: float) -> Calendar:
    """Minutes from a random hour of a random weekday on, in a random zone."""
    zone_s = HOUR_S * float(rng.integers(-9, 12))
    begin_unix_s = BEGIN_UNIX_S + DAY_S * float(rng.integers(7)) + HOUR_S * float(rng.integers(24))
    minutes = np.arange(round(days * DAY_S / MINUTE_S), dtype=np.float64)
    local_s: Floats = begin_unix_s + zone_s - BEGIN_UNIX_S + MINUTE_S * minutes
    days_since_monday = np.floor(local_s / DAY_S).astype(np.int64)
    return Calendar(
        local_s % DAY_S / HOUR_S, days_since_monday % 7, days_since_monday - days_since_monday[0], zone_s, begin_unix_s
    )


def two_humps(rng: Generator, when: Calendar) -> Floats:
    """Activity of office workers: humps in the late morning and the afternoon. 1 at most."""
    night, first, second = rng.uniform(0.05, 0.2), rng.uniform(9.5, 11.5), rng.uniform(14.5, 16.5)
    humps = [np.exp(-(((when.hour - hour + 12) % 24 - 12) ** 2) / 2 / 1.4**2) for hour in (first, second)]
    shape = np.maximum(humps[0], rng.uniform(0.8, 1.0) * humps[1])
    return np.asarray(night + (1 - night) * shape)


def evening(rng: Generator, when: Calendar) -> Floats:
    """Activity of people at home: low before dawn, most in the evening. 1 at most."""
    low, peak_hour = rng.uniform(0.15, 0.35), rng.uniform(19, 22)
    return np.asarray(low + (1 - low) * (0.5 + 0.5 * np.cos(2 * np.pi * (when.hour - peak_hour) / 24)) ** 1.5)


def around_the_clock(rng: Generator, when: Calendar) -> Floats:
    """Activity of customers on all continents: a shallow wave. 1 at most."""
    depth = rng.uniform(0.05, 0.25)
    return np.asarray(1 - depth + depth * np.sin(2 * np.pi * (when.hour / 24 + rng.random())))


def rested(activity: Floats, when: Calendar, days: Bools, share: float) -> Floats:
    """Activity with days that have a share of the usual rise above the night."""
    night = activity.min()
    return np.where(days, night + share * (activity - night), activity)


def fluctuation(rng: Generator, minutes: int, sd: float) -> Floats:
    """Factors of mean 1 that change within minutes: exp of an AR(1) with a time constant of 3 to 20 min."""
    phi = np.exp(-1 / rng.uniform(3, 20))
    terms = int(-12 / np.log(phi)) + 1
    white = rng.standard_normal(minutes + terms - 1)
    steps = np.convolve(white, np.sqrt(1 - phi**2) * phi ** np.arange(terms), "valid")
    return np.asarray(np.exp(sd * steps - sd * sd / 2))


def probe_times_s(rng: Generator, minutes: int) -> Floats:
    """Every 5 s from the start on, with a jitter of 1 s either way."""
    ticks = np.arange(int(minutes * MINUTE_S / INTERVAL_S))
    return np.asarray((ticks + 0.5) * INTERVAL_S + rng.uniform(-1, 1, ticks.size))


def poisson_times_s(rng: Generator, rate_per_s: Floats) -> Floats:
    """Times of a Poisson process with a rate for each minute."""
    expected = np.concatenate(([0.0], np.cumsum(rate_per_s * MINUTE_S)))
    edges_s = MINUTE_S * np.arange(rate_per_s.size + 1)
    times_s: Floats = np.interp(np.sort(rng.uniform(0.0, expected[-1], rng.poisson(expected[-1]))), expected, edges_s)
    return times_s


def seen_load(arrivals_s: Floats, at_s: Floats) -> Floats:
    """Arrivals per second in the minute before the last reading of the page, one every 5 s."""
    readings = np.floor(at_s / INTERVAL_S) * INTERVAL_S
    count = np.searchsorted(arrivals_s, readings) - np.searchsorted(arrivals_s, readings - MINUTE_S)
    return np.asarray(count / MINUTE_S)


def moments(rng: Generator, number: int, first_day: float, last_day: float) -> tuple[float, ...]:
    """Random times between two days."""
    return tuple(np.sort(rng.uniform(first_day, last_day, number) * DAY_S).tolist())


# Queues, request by request


HEAVY_DAYS, HEAVY_MOMENTS = 21.0, 7


def _queued(rng: Generator, when: Calendar, jobs: Jobs) -> Scene:
    """Replay the jobs, and again around each change."""

    def slower(moment_s: float) -> Slower:
        part = jobs.between(moment_s - SETTLE_S, moment_s + SEARCH_S)
        is_slow = (part.arrivals_s >= moment_s) & part.is_of_engine
        changed = replace(part, work_s=part.work_s * np.where(is_slow, SLOWER, 1.0))
        at_s, ttft_s = changed.probes(first_tokens_s(changed))
        late = at_s >= moment_s
        load = seen_load(jobs.requests_s, at_s[late])
        return Slower(when.begin_unix_s + at_s[late], ttft_s[late], load)

    at_s, ttft_s = jobs.probes(first_tokens_s(jobs))
    last_day = when.size * MINUTE_S / DAY_S - SEARCH_S / DAY_S
    return Scene(
        when.begin_unix_s + at_s,
        ttft_s,
        seen_load(jobs.requests_s, at_s),
        moments(rng, HEAVY_MOMENTS, LEARNT_DAYS, last_day),
        slower,
    )


def _busy(rng: Generator, days: float = HEAVY_DAYS) -> tuple[Calendar, Floats]:
    """Calendar and activity of a service with heavy queues: rest at most weekends, and a load that fluctuates by 5 to 10%."""
    when = calendar(rng, days)
    shape = (two_humps, evening, around_the_clock)[rng.integers(3)]
    activity = shape(rng, when)
    if rng.random() < 0.7:
        activity = rested(activity, when, when.weekday >= 5, rng.uniform(0.2, 0.6))
    return when, activity * fluctuation(rng, when.size, rng.uniform(0.05, 0.1))


def _lognormal(rng: Generator, size: int, cv: float) -> Floats:
    sigma = np.sqrt(np.log1p(cv * cv))
    return rng.lognormal(-sigma * sigma / 2, sigma, size)


def _batches(rng: Generator, traces: Path | None) -> Scene:
    """Users send several requests at once; one server takes them in order."""
    when, activity = _busy(rng)
    users, size = rng.uniform(0.6, 1.5), rng.uniform(4, 10)
    heads = poisson_times_s(rng, activity * users / size)
    counts = rng.geometric(1 / size, heads.size)
    at_s = np.repeat(heads, counts)
    work = _lognormal(rng, at_s.size, rng.uniform(0.5, 1.2))
    return _queued(rng, when, service_of(rng, "in order", at_s, work, probe_times_s(rng, when.size), activity))


def _long_answers(rng: Generator, traces: Path | None) -> Scene:
    """Two to four slots, each taken for an answer of very different lengths."""
    when, activity = _busy(rng)
    at_s = poisson_times_s(rng, activity * rng.uniform(0.5, 1.5))
    work = _lognormal(rng, at_s.size, rng.uniform(1.5, 2.5))
    slots = int(rng.integers(2, 5))
    return _queued(rng, when, service_of(rng, "slots", at_s, work, probe_times_s(rng, when.size), activity, slots))


def _low_priority(rng: Generator, traces: Path | None) -> Scene:
    """Half of the users and more go before the others and the probes, as soon as a request has ended."""
    when, activity = _busy(rng)
    at_s = poisson_times_s(rng, activity * rng.uniform(0.8, 2.0))
    work = _lognormal(rng, at_s.size, rng.uniform(0.8, 1.6))
    is_first = rng.random(at_s.size) < rng.uniform(0.5, 0.75)
    jobs = service_of(rng, "priority", at_s, work, probe_times_s(rng, when.size), activity, first=is_first)
    return _queued(rng, when, jobs)


def _surges(rng: Generator, traces: Path | None) -> Scene:
    """At random times, three to twelve minutes with half as many requests again or twice as many."""
    when, activity = _busy(rng)
    surge = np.ones(when.size)
    for begin in rng.integers(0, when.size, rng.poisson(when.size / rng.uniform(90, 240))):
        surge[begin : begin + int(rng.uniform(3, 12))] = rng.uniform(1.5, 2.2)
    at_s = poisson_times_s(rng, activity * surge * rng.uniform(0.8, 2.0))
    work = _lognormal(rng, at_s.size, rng.uniform(0.6, 1.2))
    return _queued(rng, when, service_of(rng, "in order", at_s, work, probe_times_s(rng, when.size), activity * surge))


def _replayed(rng: Generator, name: str, activity: Floats, users: float, traces: Path | None) -> tuple[Floats, Floats]:
    """Arrivals of a trace, over and over, at a rate that follows the activity; and work by the lengths, of mean 1."""
    rows = read_trace(traces, name) if traces is not None else None
    if rows is None:
        raise ValueError(f"the arrivals of {name} are in the folder of the traces")
    expected = np.concatenate(([0.0], np.cumsum(activity * users * MINUTE_S)))
    number = int(expected[-1])
    start, size = int(rng.integers(len(rows.times_s))), len(rows.times_s)
    index = start + np.arange(number)
    period = rows.times_s[-1] * (size + 1) / size
    ticks = rows.times_s[index % size] + period * (index // size)
    warped = (ticks - ticks[0]) * (size / period)  # requests at a rate of 1
    at_s = np.interp(warped, expected, MINUTE_S * np.arange(activity.size + 1))
    lengths = rows.prompts + rng.uniform(2, 8) * rows.outputs
    return at_s, (lengths / lengths.mean())[index % size]


def _azure_slots(rng: Generator, traces: Path | None) -> Scene:
    """Arrivals and lengths of the Azure trace in three to eight slots."""
    when, activity = _busy(rng)
    at_s, work = _replayed(rng, "azure", activity, rng.uniform(0.8, 1.6), traces)
    slots = int(rng.integers(3, 9))
    return _queued(rng, when, service_of(rng, "slots", at_s, work, probe_times_s(rng, when.size), activity, slots))


ALWAYS_BUSY = (0.66, 0.72)  # 1.3 times as much is stable without fluctuations


def _always_busy(rng: Generator, traces: Path | None) -> Scene:
    """Several requests at once, day and night, in order: most requests wait at most times."""
    when = calendar(rng, HEAVY_DAYS)
    activity = around_the_clock(rng, when)
    size = rng.uniform(2, 5)
    heads = poisson_times_s(rng, activity * rng.uniform(0.8, 1.6) / size)
    at_s = np.repeat(heads, rng.geometric(1 / size, heads.size))
    work = _lognormal(rng, at_s.size, rng.uniform(0.5, 1.0))
    jobs = service_of(rng, "in order", at_s, work, probe_times_s(rng, when.size), activity, busy=ALWAYS_BUSY)
    return _queued(rng, when, jobs)


def _always_shared(rng: Generator, traces: Path | None) -> Scene:
    """Requests of very different work, day and night, share the server: most are slowed by others at most times."""
    when = calendar(rng, HEAVY_DAYS)
    activity = around_the_clock(rng, when)
    at_s = poisson_times_s(rng, activity * rng.uniform(0.8, 1.6))
    work = _lognormal(rng, at_s.size, rng.uniform(1.5, 2.5))
    jobs = service_of(rng, "shared", at_s, work, probe_times_s(rng, when.size), activity, busy=ALWAYS_BUSY)
    return _queued(rng, when, jobs)


def _pareto_work(rng: Generator, traces: Path | None) -> Scene:
    """Work with a Pareto tail, cut at a hundred times its least; one server takes requests in order."""
    when, activity = _busy(rng)
    at_s = poisson_times_s(rng, activity * rng.uniform(0.8, 2.0))
    work = np.minimum(100.0, 1 + rng.pareto(rng.uniform(1.3, 1.7), at_s.size))
    return _queued(rng, when, service_of(rng, "in order", at_s, work, probe_times_s(rng, when.size), activity))


def _stop_the_world(rng: Generator, traces: Path | None) -> Scene:
    """Beside the requests, pauses of some works each, at random; they do not become slower."""
    when, activity = _busy(rng)
    at_s = poisson_times_s(rng, activity * rng.uniform(0.8, 1.6))
    work = _lognormal(rng, at_s.size, rng.uniform(0.5, 1.0))
    pauses_s = poisson_times_s(rng, np.full(when.size, 1 / rng.uniform(20, 60)))
    pauses = pauses_s, rng.uniform(3, 12) * _lognormal(rng, pauses_s.size, 0.7)
    jobs = service_of(rng, "in order", at_s, work, probe_times_s(rng, when.size), activity, others=pauses)
    return _queued(rng, when, jobs)


def _shared_batches(rng: Generator, traces: Path | None) -> Scene:
    """Users send several requests at once, and all that are present share the server equally."""
    when, activity = _busy(rng)
    size = rng.uniform(3, 8)
    heads = poisson_times_s(rng, activity * rng.uniform(0.5, 1.0) / size)
    at_s = np.repeat(heads, rng.geometric(1 / size, heads.size))
    work = _lognormal(rng, at_s.size, rng.uniform(0.8, 1.5))
    return _queued(rng, when, service_of(rng, "shared", at_s, work, probe_times_s(rng, when.size), activity))


def _shortest_first(rng: Generator, traces: Path | None) -> Scene:
    """The shortest waiting request is next; a probe is longer than most."""
    when, activity = _busy(rng)
    at_s = poisson_times_s(rng, activity * rng.uniform(0.8, 2.0))
    work = _lognormal(rng, at_s.size, rng.uniform(1.2, 2.0))
    jobs = service_of(rng, "shortest", at_s, work, probe_times_s(rng, when.size), activity, probe_work=1.5)
    return _queued(rng, when, jobs)


def _mooncake_in_order(rng: Generator, traces: Path | None) -> Scene:
    """Arrivals and lengths of the Mooncake trace, one request after another."""
    when, activity = _busy(rng)
    at_s, work = _replayed(rng, "mooncake", activity, rng.uniform(0.6, 1.2), traces)
    return _queued(rng, when, service_of(rng, "in order", at_s, work, probe_times_s(rng, when.size), activity))


# Light services, by formula


@dataclass(frozen=True)
class Light:
    """A service whose waits are those of M/M/1 at the utilization of the moment.

    rate_per_s: of the users, each minute; own: factor on the engine's own time, each probe
    """

    when: Calendar
    rate_per_s: Floats
    own_s: float
    spread: float
    network_s: float
    peak_busy: float
    peak_per_s: float
    batch_effect: float

    def scene(
        self, rng: Generator, times_s: tuple[float, ...], own: Floats | None = None, answered: Bools | None = None
    ) -> Scene:
        """Probes, with `own` times the own time at each; those not `answered` are left out."""
        at_s = probe_times_s(rng, self.when.size)
        rate = np.interp(at_s / MINUTE_S, np.arange(self.when.size) + 0.5, self.rate_per_s)
        load = seen_load(np.sort(np.concatenate((poisson_times_s(rng, self.rate_per_s), at_s))), at_s)
        noise = np.exp(self.spread * rng.standard_normal(at_s.size))
        network_s = self.network_s * np.exp(0.1 * rng.standard_normal(at_s.size))
        chance, wait = rng.random(at_s.size), rng.exponential(1.0, at_s.size)
        factors = np.ones(at_s.size) if own is None else own
        is_answered = np.ones(at_s.size, dtype=np.bool_) if answered is None else answered

        def ttft_s(factor: Floats | float) -> Floats:
            own_s = self.own_s * factors * factor
            busy = np.minimum(0.97, self.peak_busy * rate / self.peak_per_s * factors * factor)
            waits_s = np.where(chance < busy, wait * own_s / (1 - busy), 0.0)
            return np.asarray(network_s + own_s * noise * (1 + self.batch_effect * busy) + waits_s)

        def slower(moment_s: float) -> Slower:
            late = is_answered & (at_s >= moment_s) & (at_s < moment_s + SEARCH_S)
            return Slower(self.when.begin_unix_s + at_s[late], ttft_s(SLOWER)[late], load[late])

        unix_s = self.when.begin_unix_s + at_s[is_answered]
        return Scene(unix_s, ttft_s(1.0)[is_answered], load[is_answered], times_s, slower)


def _light(rng: Generator, when: Calendar, activity: Floats) -> Light:
    peak_per_s = np.exp(rng.uniform(np.log(1.5), np.log(15)))
    own_s = np.exp(rng.uniform(np.log(0.05), np.log(0.8)))
    steady = activity * fluctuation(rng, when.size, rng.uniform(0.05, 0.15))
    return Light(
        when,
        peak_per_s * steady,
        own_s,
        rng.uniform(0.08, 0.25),
        own_s * rng.uniform(0.02, 0.1),
        rng.uniform(0.3, 0.6),
        peak_per_s,
        rng.uniform(0.0, 0.8),
    )


def _weekday_in_first_week(rng: Generator, when: Calendar, length: int = 1) -> NDArray[np.int64]:
    """Working days of the first week, all whole and after each other."""
    begins = [
        day
        for day in range(1, 7 - length)
        if all(when.weekday[np.argmax(when.day == day + i)] < 5 for i in range(length))
    ]
    first = int(rng.choice(begins))
    return np.arange(first, first + length)


def _at_work(rng: Generator, days: float) -> tuple[Calendar, Floats]:
    when = calendar(rng, days)
    return when, rested(two_humps(rng, when), when, when.weekday >= 5, rng.uniform(0.1, 0.3))


ODD_WEEK_DAYS = 16.0


def _week_later(rng: Generator) -> tuple[float, ...]:
    return moments(rng, 2, 14.0, 15.6)


def _holiday(rng: Generator, traces: Path | None) -> Scene:
    """A working day of the first week is as quiet as a Sunday."""
    when, activity = _at_work(rng, ODD_WEEK_DAYS)
    day = _weekday_in_first_week(rng, when)
    activity = rested(activity, when, np.isin(when.day, day), rng.uniform(0.05, 0.3))
    return _light(rng, when, activity).scene(rng, _week_later(rng))


def _hours(
    rng: Generator, when: Calendar, first_day: float, last_day: float, shortest_h: float, longest_h: float
) -> Bools:
    """A span of hours that begins between two days, of shape (minutes,)."""
    begin = rng.uniform(first_day, last_day) * 1440
    minutes = np.arange(when.size)
    return np.asarray((minutes >= begin) & (minutes < begin + 60 * rng.uniform(shortest_h, longest_h)))


def _batch_by_load(rng: Generator, traces: Path | None) -> Scene:
    """Once in the first week a job of three to eight hours sends as many requests as the users at their peak, or half as many."""
    when, activity = _at_work(rng, ODD_WEEK_DAYS)
    extra = np.where(_hours(rng, when, 1, 5.5, 3, 8), rng.uniform(0.5, 0.9), 0.0)
    return _light(rng, when, activity + extra).scene(rng, _week_later(rng))


def _bridge_days(rng: Generator, traces: Path | None) -> Scene:
    """Two working days of the first week, one after the other, are quiet."""
    when, activity = _at_work(rng, ODD_WEEK_DAYS)
    days = _weekday_in_first_week(rng, when, 2)
    activity = rested(activity, when, np.isin(when.day, days), rng.uniform(0.05, 0.4))
    return _light(rng, when, activity).scene(rng, _week_later(rng))


def _batch_on_the_gpu(rng: Generator, traces: Path | None) -> Scene:
    """Once in the first week a job on the same GPU slows the engine by 30 to 80% for three to eight hours; the page shows nothing."""
    when, activity = _at_work(rng, ODD_WEEK_DAYS)
    slow = np.repeat(_hours(rng, when, 1, 5.5, 3, 8), int(MINUTE_S / INTERVAL_S))
    return _light(rng, when, activity).scene(rng, _week_later(rng), np.where(slow, rng.uniform(1.3, 1.8), 1.0))


SWAP_DAYS, FASTER = 16.0, 0.65


def _days_after(rng: Generator, swapped_day: float) -> tuple[float, ...]:
    return moments(rng, 2, swapped_day + 2.5, swapped_day + 5.0)


def _swap(rng: Generator, traces: Path | None) -> Scene:
    """The model is replaced at once by one that takes 35% less."""
    when, activity = _at_work(rng, SWAP_DAYS)
    swapped_day = rng.uniform(8.0, 10.0)
    at_day = np.arange(int(SWAP_DAYS * DAY_S / INTERVAL_S)) * INTERVAL_S / DAY_S
    own = np.where(at_day < swapped_day, 1.0, FASTER)
    return _light(rng, when, activity).scene(rng, _days_after(rng, swapped_day), own)


def _swap_around_the_clock(rng: Generator, traces: Path | None) -> Scene:
    """The same on a service with a shallow wave of load and no rest days."""
    when = calendar(rng, SWAP_DAYS)
    swapped_day = rng.uniform(8.0, 10.0)
    at_day = np.arange(int(SWAP_DAYS * DAY_S / INTERVAL_S)) * INTERVAL_S / DAY_S
    own = np.where(at_day < swapped_day, 1.0, FASTER)
    return _light(rng, when, around_the_clock(rng, when)).scene(rng, _days_after(rng, swapped_day), own)


def _swap_rolling(rng: Generator, traces: Path | None) -> Scene:
    """Three to six replicas are replaced one after another within 4 to 24 h; a probe goes to any of them."""
    when, activity = _at_work(rng, SWAP_DAYS)
    swapped_day, replicas = rng.uniform(8.0, 9.5), int(rng.integers(3, 7))
    steps = swapped_day + np.sort(rng.uniform(0, rng.uniform(4, 24) / 24, replicas))
    at_day = np.arange(int(SWAP_DAYS * DAY_S / INTERVAL_S)) * INTERVAL_S / DAY_S
    own = np.where(at_day < steps[rng.integers(0, replicas, at_day.size)], 1.0, FASTER)
    return _light(rng, when, activity).scene(rng, _days_after(rng, float(steps[-1])), own)


def _swap_after_gap(rng: Generator, traces: Path | None) -> Scene:
    """The service is down for ten minutes to two hours, and comes back with a model that takes 35% less."""
    when = calendar(rng, SWAP_DAYS)
    activity = evening(rng, when)
    swapped_day = rng.uniform(8.0, 10.0)
    at_day = np.arange(int(SWAP_DAYS * DAY_S / INTERVAL_S)) * INTERVAL_S / DAY_S
    own = np.where(at_day < swapped_day, 1.0, FASTER)
    is_down = (at_day > swapped_day - rng.uniform(10, 120) / 1440) & (at_day < swapped_day)
    return _light(rng, when, activity).scene(rng, _days_after(rng, swapped_day), own, ~is_down)


REST_DAYS = 23.0


def _resting(rng: Generator, days: Callable[[Calendar], Bools]) -> Scene:
    when = calendar(rng, REST_DAYS)
    activity = rested(two_humps(rng, when), when, days(when), rng.uniform(0.05, 0.3))
    return _light(rng, when, activity).scene(rng, moments(rng, 4, LEARNT_DAYS, REST_DAYS - SEARCH_S / DAY_S))


def _friday_saturday(rng: Generator, traces: Path | None) -> Scene:
    """Rest on Friday and Saturday."""
    return _resting(rng, lambda when: (when.weekday == 4) | (when.weekday == 5))


def _one_working_day(rng: Generator, traces: Path | None) -> Scene:
    """Rest on one day, from Tuesday to Thursday."""
    day = rng.integers(1, 4)
    return _resting(rng, lambda when: when.weekday == day)


def _sunday_monday(rng: Generator, traces: Path | None) -> Scene:
    """Rest on Sunday and Monday."""
    return _resting(rng, lambda when: (when.weekday == 6) | (when.weekday == 0))


def _only_sunday(rng: Generator, traces: Path | None) -> Scene:
    """Rest on Sunday only."""
    return _resting(rng, lambda when: when.weekday == 6)


RECURRING_DAYS = 30.0
BURST_MINUTES = 3


def _twice_a_day(rng: Generator, when: Calendar) -> Bools:
    """Three minutes at two hours of each day, of shape (minutes,)."""
    first = rng.uniform(0, 24)
    hours = first, first + rng.uniform(5, 13)
    inside: Bools = np.any([(when.hour - hour) % 24 < BURST_MINUTES / 60 for hour in hours], axis=0)
    return inside


def _by_probe(values: Floats) -> Floats:
    return np.repeat(values, int(MINUTE_S / INTERVAL_S))


def _bursts(rng: Generator, traces: Path | None) -> Scene:
    """Twice a day all requests take half as long again to three times as long, for three minutes; the page shows nothing."""
    when, activity = _at_work(rng, RECURRING_DAYS)
    own = np.where(_twice_a_day(rng, when), rng.uniform(1.5, 3.0), 1.0)
    return _light(rng, when, activity).scene(rng, (), _by_probe(own))


def _weekly(rng: Generator, when: Calendar, jitter_h: float) -> Bools:
    """One to four hours of one day of each week, begun late by up to `jitter_h`, of shape (minutes,)."""
    weekday, hour, length_h = rng.integers(7), rng.uniform(0, 19), rng.uniform(1, 4)
    late_h = rng.uniform(0, jitter_h, when.day[-1] + 1)[when.day]
    return np.asarray((when.weekday == weekday) & (when.hour >= hour + late_h) & (when.hour < hour + late_h + length_h))


def _weekly_batch(rng: Generator, traces: Path | None) -> Scene:
    """A job on the same GPU slows the engine by 30 to 100% for one to four hours each week; the page shows nothing."""
    when, activity = _at_work(rng, RECURRING_DAYS)
    own = np.where(_weekly(rng, when, 0.0), rng.uniform(1.3, 2.0), 1.0)
    return _light(rng, when, activity).scene(rng, (), _by_probe(own))


def _bursts_of_requests(rng: Generator, traces: Path | None) -> Scene:
    """Twice a day a job sends requests for three minutes, one to one and a half times as many as the users at their peak."""
    when, activity = _at_work(rng, RECURRING_DAYS)
    extra = np.where(_twice_a_day(rng, when), rng.uniform(1.0, 1.5), 0.0)
    return _light(rng, when, activity + extra).scene(rng, ())


def _weekly_batch_by_load(rng: Generator, traces: Path | None) -> Scene:
    """A weekly job of one to four hours, late by up to an hour, sends half of the users' peak or as much as it."""
    when, activity = _at_work(rng, RECURRING_DAYS)
    extra = np.where(_weekly(rng, when, 1.0), rng.uniform(0.5, 1.0), 0.0)
    return _light(rng, when, activity + extra).scene(rng, ())


Kind = Callable[[Generator, Path | None], Scene]

TUNING: dict[Group, dict[str, Kind]] = {
    "heavy queues": {
        "batches": _batches,
        "long_answers": _long_answers,
        "low_priority": _low_priority,
        "surges": _surges,
        "always_busy": _always_busy,
        "azure_slots": _azure_slots,
    },
    "after an odd week": {"holiday": _holiday, "batch_by_load": _batch_by_load},
    "after a faster model": {"swap": _swap, "swap_around_the_clock": _swap_around_the_clock},
    "other rest days": {"friday_saturday": _friday_saturday, "one_working_day": _one_working_day},
    "recurring": {"bursts": _bursts, "weekly_batch": _weekly_batch},
}
HELD_OUT: dict[Group, dict[str, Kind]] = {
    "heavy queues": {
        "pareto_work": _pareto_work,
        "stop_the_world": _stop_the_world,
        "shared_batches": _shared_batches,
        "shortest_first": _shortest_first,
        "always_shared": _always_shared,
        "mooncake_in_order": _mooncake_in_order,
    },
    "after an odd week": {"bridge_days": _bridge_days, "batch_on_the_gpu": _batch_on_the_gpu},
    "after a faster model": {"swap_rolling": _swap_rolling, "swap_after_gap": _swap_after_gap},
    "other rest days": {"sunday_monday": _sunday_monday, "only_sunday": _only_sunday},
    "recurring": {"bursts_of_requests": _bursts_of_requests, "weekly_batch_by_load": _weekly_batch_by_load},
}
FROM_TRACES = frozenset({"azure_slots", "mooncake_in_order"})
KINDS: dict[str, Kind] = {
    name: kind for half in (TUNING, HELD_OUT) for kinds in half.values() for name, kind in kinds.items()
}


def scene(kind: str, index: int, seed: int, traces: Path | None = None) -> Scene:
    """Scene `index` of a kind of `KINDS`.

    Raises:
        ValueError: the kind replays a trace, and there is no folder of traces
    """
    return KINDS[kind](np.random.default_rng([seed, zlib.crc32(kind.encode()), index]), traces)
