"""TTFT and load of services on which nothing happens, and changes to put on them.

A probe every 5 s. Levels, day's hours, weekday of the start and strength of all effects are random per lane. TTFT depends on the
requests in flight at the probe; the prober sees them as an engine's page shows them: an integer, read up to 5 s earlier.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

PROBE_INTERVAL_S = 5.0
DAY_S = 86400.0
DAYS = 45.0
MONDAY_UNIX_S = 1_793_577_600.0  # 2026-11-02 00:00 UTC
LIFETIMES = np.array([1, 3, 8, 20])  # of requests in flight, in probe intervals


@dataclass(frozen=True, slots=True)
class Lane:
    """One signal of one service, in order of time.

    unix_s: of the probes, shape (probes,)
    log_ttft: natural logarithm of TTFT in seconds, shape (probes,)
    load: requests running and waiting at the last reading of the page, shape (probes,), NaN where the page was not readable;
        None if the prober reads no page
    """

    unix_s: Floats
    log_ttft: Floats
    load: Floats | None


@dataclass(frozen=True, slots=True)
class Clock:
    """Times of the probes and the local calendar of the service's users, all of shape (probes,).

    hour: local time of day, 0 to 24
    day: local days since the first Monday
    """

    unix_s: Floats
    hour: Floats
    day: NDArray[np.int64]

    @property
    def size(self) -> int:
        """Number of probes."""
        return self.unix_s.size

    @property
    def weekday(self) -> NDArray[np.int64]:
        """0 is Monday."""
        return self.day % 7

    def set_forward(self, hours: float, since: Bools) -> "Clock":
        """The clock with the local time set forward by `hours` from some probes on."""
        local_s = self.day * DAY_S + self.hour * 3600 + np.where(since, hours * 3600, 0.0)
        return replace(self, hour=local_s % DAY_S / 3600, day=(local_s // DAY_S).astype(np.int64))


@dataclass(frozen=True, slots=True)
class Signal:
    """The service as it is. All of shape (probes,).

    probed: False while the prober is down
    readable: False while the engine's page is not
    """

    log_ttft: Floats
    in_flight: Floats
    probed: Bools | None = None
    readable: Bools | None = None


def lanes(kind: str, number: int, days: float, seed: int, load_seen: bool) -> Iterator[Lane]:
    """`number` lanes of a kind of `KINDS`. A lane depends on its place in this sequence, and not on `number`."""
    return (lane(kind, index, days, seed, load_seen) for index in range(number))


def lane(kind: str, index: int, days: float, seed: int, load_seen: bool) -> Lane:
    """Lane `index` of a kind. `load_seen` changes nothing else."""
    rng = np.random.default_rng([seed, zlib.crc32(kind.encode()), index])
    clock = _clock(rng, days)
    signal = KINDS[kind](rng, clock)
    load = _page(rng, signal.in_flight)
    if signal.readable is not None:
        load = np.where(signal.readable, load, np.nan)
    probed = slice(None) if signal.probed is None else signal.probed
    return Lane(clock.unix_s[probed], signal.log_ttft[probed], load[probed] if load_seen else None)


def changed(log_ttft: Floats, from_index: int, factor: float) -> Floats:
    """TTFT × `factor` from an index on."""
    result = log_ttft.copy()
    result[from_index:] += np.log(factor)
    return result


def tailed(log_ttft: Floats, from_index: int, factor: float, share: float, seed: int) -> Floats:
    """TTFT × `factor` for a random share of the probes from an index on."""
    result = log_ttft.copy()
    slow = np.random.default_rng(seed).random(result.size - from_index) < share
    result[from_index:] += np.where(slow, np.log(factor), 0.0)
    return result


def ramped(log_ttft: Floats, from_index: int, factor: float, probes: int) -> Floats:
    """TTFT that rises geometrically to × `factor` within a number of probes from an index on, and stays there."""
    result = log_ttft.copy()
    result[from_index:] += np.log(factor) * np.minimum(1.0, np.arange(1, result.size - from_index + 1) / probes)
    return result


# Building blocks


def _clock(rng: Generator, days: float) -> Clock:
    """Probes from the middle of a random weekday on, in a random time zone."""
    start_s = DAY_S * rng.integers(7) + 3600 * rng.uniform(10, 15)
    local_s = start_s + PROBE_INTERVAL_S * np.arange(int(days * DAY_S / PROBE_INTERVAL_S))
    zone_s = 3600.0 * rng.integers(-8, 11)
    return Clock(MONDAY_UNIX_S + local_s - zone_s, local_s % DAY_S / 3600, (local_s // DAY_S).astype(np.int64))


def _autoregressive(rng: Generator, size: int, phi: float) -> Floats:
    """Gaussian AR(1) of variance 1."""
    terms = max(1, int(np.log(1e-6) / np.log(phi)))
    white = rng.standard_normal(size + terms - 1)
    return np.convolve(white, np.sqrt(1 - phi**2) * phi ** np.arange(terms), "valid")


def _wander(rng: Generator, size: int, time_constant_s: float, sd: float) -> Floats:
    """Ornstein-Uhlenbeck process of mean 0."""
    interval_s = max(PROBE_INTERVAL_S, time_constant_s / 8)
    knots = _autoregressive(rng, int(size * PROBE_INTERVAL_S / interval_s) + 2, np.exp(-interval_s / time_constant_s))
    values = np.interp(np.arange(size) * PROBE_INTERVAL_S, np.arange(knots.size) * interval_s, sd * knots)
    return np.asarray(values, dtype=np.float64)


def _dwelling(rng: Generator, size: int, mean_probes: float) -> NDArray[np.int64]:
    """Indices such that `draws[indices]` repeats a draw for a geometric number of probes."""
    renewed = rng.random(size) < 1 / mean_probes
    return np.maximum.accumulate(np.where(renewed, np.arange(size), 0))


def _office_hours(rng: Generator, clock: Clock) -> Floats:
    """Activity: flat at night, a ramp of an hour in the morning, a dip at lunch, a ramp of two hours in the evening. 1 at most."""
    night, lunch, shift = rng.uniform(0.02, 0.15), rng.uniform(0.6, 0.85), rng.uniform(-0.5, 0.5)
    hours = np.array([0, 8, 9, 11.9, 12.2, 12.9, 13.2, 17, 19, 24]) + np.array([0, *[shift] * 8, 0])
    return np.interp(clock.hour, hours, [night, night, 1, 1, lunch, lunch, 1, 1, night, night])


def _quiet(rng: Generator, activity: Floats, days: Bools) -> Floats:
    """Activity with some days that have 5 to 30% of their day's rise above the night."""
    night = activity.min()
    return np.where(days, night + rng.uniform(0.05, 0.3) * (activity - night), activity)


def _present(begun: NDArray[np.int64], lifetime: int) -> NDArray[np.int64]:
    """Requests in flight if every request stays for a number of probe intervals, the one of its arrival included."""
    total = np.cumsum(begun)
    total[lifetime:] -= total[:-lifetime].copy()
    return total


def _in_flight(rng: Generator, activity: Floats, peak: float, *, fluctuates: bool = True) -> Floats:
    """Requests in flight of M(t)/G/∞, whose arrivals also fluctuate by 5 to 20% within minutes. `peak`: mean at activity 1."""
    fluctuation = np.ones(activity.size)
    if fluctuates:
        fluctuation = np.exp(_wander(rng, activity.size, rng.uniform(60, 600), rng.uniform(0.05, 0.2)))
    start = np.full(LIFETIMES[-1], activity[0] * fluctuation[0])
    mean = peak * np.concatenate((start, activity * fluctuation))
    total = np.zeros(mean.size)
    for lifetime, share in zip(LIFETIMES, rng.dirichlet(np.ones(LIFETIMES.size)), strict=True):
        total += _present(rng.poisson(mean * share / lifetime), lifetime)
    return total[start.size :]


def _page(rng: Generator, in_flight: Floats) -> Floats:
    """Reading of 0 to 5 s ago, which sometimes includes a probe."""
    stale = rng.random(in_flight.size) < rng.random()
    reading = np.where(stale, np.concatenate((in_flight[:1], in_flight[:-1])), in_flight)
    return reading + (rng.random(in_flight.size) < 0.1)


def _peak(rng: Generator) -> float:
    """Mean requests in flight at the busiest time."""
    return float(np.exp(rng.uniform(np.log(8), np.log(80))))


def _load_effect(rng: Generator, in_flight: Floats, peak: float) -> Floats:
    """Added log TTFT: linear, quadratic or as 1 ÷ (1 − utilisation); × 1.3 to 2.5 at the peak."""
    rise = rng.uniform(1.3, 2.5)
    form = rng.integers(3)
    share = in_flight / peak
    effect = (
        np.log1p((rise - 1) * share ** (1 + form)) if form < 2 else -np.log1p(-np.minimum(0.95, (1 - 1 / rise) * share))
    )
    return np.asarray(effect, dtype=np.float64)


def _level(rng: Generator) -> float:
    """Log of a TTFT of 50 ms to 1.5 s."""
    return float(rng.uniform(np.log(0.05), np.log(1.5)))


def _noise(rng: Generator, size: int) -> Floats:
    """Lognormal noise of 10 to 40%."""
    return rng.uniform(0.1, 0.4) * rng.standard_normal(size)


def _irrelevant_load(rng: Generator, clock: Clock) -> Floats:
    """Load that TTFT does not depend on: flat, or with office hours."""
    activity = _office_hours(rng, clock) if rng.random() < 0.5 else np.ones(clock.size)
    return _in_flight(rng, activity, _peak(rng))


def _driven(rng: Generator, activity: Floats) -> Signal:
    """A service whose TTFT rises with its load."""
    peak = _peak(rng)
    in_flight = _in_flight(rng, activity, peak)
    return Signal(_level(rng) + _load_effect(rng, in_flight, peak) + _noise(rng, activity.size), in_flight)


def _hit_or_miss(rng: Generator, hit_ratio: Floats) -> Floats:
    """Log TTFT of a prefix cache: hits of one speed, misses 2.5 to 6 times slower."""
    hit = rng.random(hit_ratio.size) < hit_ratio
    miss_log = np.log(rng.uniform(2.5, 6.0))
    return np.where(hit, 0.0, miss_log) + rng.uniform(0.08, 0.2) * rng.standard_normal(hit_ratio.size)


def _spans(rng: Generator, clock: Clock, number: int, shortest_h: float, longest_h: float) -> Bools:
    """Probes within random spans of time."""
    inside = np.zeros(clock.size, dtype=np.bool_)
    for _ in range(number):
        begin = rng.integers(clock.size)
        inside[begin : begin + int(rng.uniform(shortest_h, longest_h) * 3600 / PROBE_INTERVAL_S)] = True
    return inside


# Kinds


def _independent(rng: Generator, clock: Clock) -> Signal:
    """Independent lognormal TTFT."""
    return Signal(_level(rng) + _noise(rng, clock.size), _irrelevant_load(rng, clock))


def _bimodal(rng: Generator, clock: Clock) -> Signal:
    """Cache hits and misses with a fixed share."""
    hit_ratio = np.full(clock.size, rng.uniform(0.15, 0.85))
    return Signal(_level(rng) + _hit_or_miss(rng, hit_ratio), _irrelevant_load(rng, clock))


def _hit_ratio_by_load(rng: Generator, clock: Clock) -> Signal:
    """The share of cache hits falls as load rises, so the shape of TTFT changes with load."""
    peak = _peak(rng)
    in_flight = _in_flight(rng, _office_hours(rng, clock), peak)
    hit_ratio = rng.uniform(0.8, 0.97) - rng.uniform(0.35, 0.65) * np.minimum(1.2, in_flight / peak)
    rise = rng.uniform(0.0, 0.3) * in_flight / peak
    return Signal(_level(rng) + _hit_or_miss(rng, np.maximum(0.05, hit_ratio)) + rise, in_flight)


def _office(rng: Generator, clock: Clock) -> Signal:
    """Every day has office hours."""
    return _driven(rng, _office_hours(rng, clock))


def _steady(rng: Generator, activity: Floats) -> Signal:
    """A service whose TTFT rises with its load, and whose arrivals fluctuate by chance only."""
    peak = _peak(rng)
    in_flight = _in_flight(rng, activity, peak, fluctuates=False)
    return Signal(_level(rng) + _load_effect(rng, in_flight, peak) + _noise(rng, activity.size), in_flight)


def _steady_office(rng: Generator, clock: Clock) -> Signal:
    """Every day has office hours; arrivals fluctuate by chance only."""
    return _steady(rng, _office_hours(rng, clock))


def _steady_weekend(rng: Generator, clock: Clock) -> Signal:
    """Office hours from Monday to Friday, and a quiet weekend; arrivals fluctuate by chance only."""
    return _steady(rng, _quiet(rng, _office_hours(rng, clock), clock.weekday >= 5))


def _weekend(rng: Generator, clock: Clock) -> Signal:
    """Office hours from Monday to Friday, and a quiet weekend."""
    return _driven(rng, _quiet(rng, _office_hours(rng, clock), clock.weekday >= 5))


def _friday_weekend(rng: Generator, clock: Clock) -> Signal:
    """Office hours from Sunday to Thursday, and a quiet weekend of Friday and Saturday."""
    return _driven(rng, _quiet(rng, _office_hours(rng, clock), (clock.weekday == 4) | (clock.weekday == 5)))


def _daily_bursts(rng: Generator, clock: Clock) -> Signal:
    """Twice a day, at the same two hours, part of the requests take three to eight times as long for three minutes."""
    steady = _steady_office(rng, clock)
    first = rng.uniform(0, 24)
    hours = first, first + rng.uniform(5, 12)
    share, factor = rng.uniform(0.2, 0.5), rng.uniform(3, 8)
    within = np.any([(clock.hour - hour) % 24 < 3 / 60 for hour in hours], axis=0)
    slow = within & (rng.random(clock.size) < share)
    return replace(steady, log_ttft=steady.log_ttft + np.where(slow, np.log(factor), 0.0))


def _holiday(rng: Generator, clock: Clock) -> Signal:
    """Quiet weekends, and in each two weeks a quiet day from Monday to Friday."""
    workdays = np.unique(clock.day[clock.weekday < 5])
    holidays = [rng.choice(block) for block in np.array_split(workdays, max(1, workdays.size // 10))]
    return _driven(rng, _quiet(rng, _office_hours(rng, clock), (clock.weekday >= 5) | np.isin(clock.day, holidays)))


def _heavy_tail(rng: Generator, clock: Clock) -> Signal:
    """Part of TTFT has a Pareto tail with an exponent of 1.2 to 1.9, so its variance is infinite."""
    tail = 1 + rng.uniform(0.1, 0.6) * rng.pareto(rng.uniform(1.2, 1.9), clock.size)
    noise = rng.uniform(0.05, 0.15) * rng.standard_normal(clock.size)
    return Signal(_level(rng) + np.log(tail) + noise, _irrelevant_load(rng, clock))


def _ar(rng: Generator, clock: Clock, phi: float) -> Signal:
    """AR(1) in normal scores with a right skew in half of the lanes."""
    score = _autoregressive(rng, clock.size, phi)
    skewed = score if rng.random() < 0.5 else np.expm1(0.4 * score) / 0.4
    return Signal(_level(rng) + rng.uniform(0.1, 0.3) * skewed, _irrelevant_load(rng, clock))


def _ar_low(rng: Generator, clock: Clock) -> Signal:
    """AR(1) with a coefficient near 0.3."""
    return _ar(rng, clock, rng.uniform(0.25, 0.35))


def _ar_high(rng: Generator, clock: Clock) -> Signal:
    """AR(1) with a coefficient near 0.6."""
    return _ar(rng, clock, rng.uniform(0.55, 0.65))


def _queue(rng: Generator, clock: Clock) -> Signal:
    """Waiting time of M/G/1 with office hours: mean, spread and correlation grow with load."""
    service_s, shape = rng.uniform(0.15, 0.6), rng.uniform(0.7, 4.0)
    utilisation = rng.uniform(0.6, 0.8) * _office_hours(rng, clock)
    arrivals = rng.poisson(PROBE_INTERVAL_S * utilisation / service_s)
    work_s = rng.standard_gamma(np.maximum(1e-9, shape * arrivals)) * service_s / shape
    net_s = np.cumsum(work_s - PROBE_INTERVAL_S)
    backlog_s = net_s - np.minimum(0.0, np.minimum.accumulate(net_s))
    # Work that arrived within the interval is partly done when it ends; a probe finds the rest of a service then.
    busy = rng.random(clock.size) < utilisation
    backlog_s += np.where(busy, rng.exponential(service_s * (1 + 1 / shape) / 2, clock.size), 0.0)
    waiting = rng.poisson(np.maximum(0.0, backlog_s / service_s - 0.5))
    base_s = np.exp(np.log(service_s) + rng.uniform(-1.0, 0.5) + _noise(rng, clock.size))
    decoding = _present(arrivals, int(rng.integers(1, 7)))
    return Signal(np.log(base_s + backlog_s), np.asarray(decoding + waiting, dtype=np.float64))


def _stepped(rng: Generator, clock: Clock) -> Signal:
    """The wait for the end of a step of the engine, then a small number of steps, each longer the more requests are in flight."""
    peak = _peak(rng)
    in_flight = _in_flight(rng, _office_hours(rng, clock), peak)
    step_s = rng.uniform(0.015, 0.05) * (1 + rng.uniform(0.3, 1.5) * in_flight / peak)
    chunks = rng.choice([1, 2, 4], clock.size, p=rng.dirichlet([4, 3, 2]))
    queued = rng.poisson(rng.uniform(0.1, 0.8) * in_flight / peak)
    network_s = rng.uniform(0.001, 0.004) * np.exp(0.2 * rng.standard_normal(clock.size))
    return Signal(np.log((rng.random(clock.size) + chunks + queued) * step_s + network_s), in_flight)


def _hourly_batch(rng: Generator, clock: Clock) -> Signal:
    """Batch jobs multiply the load for ten minutes from each full hour on."""
    busy = clock.hour % 1 < 1 / 6
    base = rng.uniform(0.25, 0.5) * (np.ones(clock.size) if rng.random() < 0.5 else _office_hours(rng, clock))
    return _driven(rng, np.where(busy, base + rng.uniform(0.5, 0.75), base))


def _nightly_backup(rng: Generator, clock: Clock) -> Signal:
    """A backup from 02:00 to 02:20 slows requests by 30 to 150%, and the page does not show it."""
    signal = _driven(rng, _office_hours(rng, clock))
    running = (clock.hour >= 2) & (clock.hour < 2 + 1 / 3)
    return replace(signal, log_ttft=signal.log_ttft + np.where(running, np.log(rng.uniform(1.3, 2.5)), 0.0))


def _random_amplitude(rng: Generator, clock: Clock) -> Signal:
    """The peaks of the days differ by up to 30% either way."""
    amplitudes = rng.uniform(0.7, 1.3, clock.day[-1] + 1)
    return _driven(rng, _office_hours(rng, clock) * amplitudes[clock.day])


def _slow_wander(rng: Generator, clock: Clock) -> Signal:
    """The level wanders with a standard deviation of 3% within hours, unrelated to load."""
    wander = _wander(rng, clock.size, 3600 * rng.uniform(0.5, 6), 0.03)
    return Signal(_level(rng) + wander + _noise(rng, clock.size), _irrelevant_load(rng, clock))


def _load_scaled_noise(rng: Generator, clock: Clock) -> Signal:
    """The spread of TTFT doubles to triples with load; its median changes little."""
    peak = _peak(rng)
    in_flight = _in_flight(rng, _office_hours(rng, clock), peak)
    share = in_flight / peak
    sd = rng.uniform(0.08, 0.15) * (1 + rng.uniform(1, 2) * share)
    median = _level(rng) + rng.uniform(0, 0.1) * share
    return Signal(median + sd * _autoregressive(rng, clock.size, rng.uniform(0.05, 0.3)), in_flight)


def _two_replicas(rng: Generator, clock: Clock) -> Signal:
    """A balancer sends a probe to one of two replicas, one 1.3 to 2.2 times slower, and repeats its choice for some probes."""
    peak = _peak(rng)
    in_flight = _in_flight(rng, _office_hours(rng, clock), peak)
    slow = (rng.random(clock.size) < rng.uniform(0.3, 0.6))[_dwelling(rng, clock.size, rng.uniform(1, 4))]
    slower = np.where(slow, np.log(rng.uniform(1.3, 2.2)), 0.0)
    noise = rng.uniform(0.08, 0.2) * rng.standard_normal(clock.size)
    return Signal(_level(rng) + slower + 0.5 * _load_effect(rng, in_flight, peak) + noise, in_flight)


def _timer_ticks(rng: Generator, clock: Clock) -> Signal:
    """TTFT of 20 to 120 ms in ticks of 1, 10 or 15.6 ms: many equal values."""
    tick_s = rng.choice([0.001, 0.01, 1 / 64])
    ttft_s = np.exp(rng.uniform(np.log(0.02), np.log(0.12)) + _noise(rng, clock.size))
    return Signal(np.log(np.maximum(1.0, np.round(ttft_s / tick_s)) * tick_s), _irrelevant_load(rng, clock))


def _low_variance(rng: Generator, clock: Clock) -> Signal:
    """TTFT with a standard deviation of 2%."""
    return Signal(_level(rng) + 0.02 * rng.standard_normal(clock.size), _irrelevant_load(rng, clock))


def _weekday_trend(rng: Generator, clock: Clock) -> Signal:
    """Users come in growing numbers from Monday to Friday; the weekend is quiet."""
    growth = 1 + rng.uniform(0.05, 0.15) * np.minimum(clock.weekday, 4)
    return _driven(rng, _quiet(rng, _office_hours(rng, clock), clock.weekday >= 5) * growth / growth.max())


def _missing_data(rng: Generator, clock: Clock) -> Signal:
    """The prober is down for hours, and at other times the page is not readable for an hour; both about weekly."""
    weeks = max(1, round(clock.size * PROBE_INTERVAL_S / DAY_S / 7))
    down, unreadable = _spans(rng, clock, weeks, 1, 12), _spans(rng, clock, 2 * weeks, 0.9, 1.1)
    return replace(_driven(rng, _office_hours(rng, clock)), probed=~down, readable=~unreadable)


def _daylight_saving(rng: Generator, clock: Clock) -> Signal:
    """Clocks are set forward or back by an hour at 02:00 of one of the middle days, and the users with them."""
    middle = clock.day[int(clock.size * rng.uniform(0.4, 0.8))]
    since = clock.day * 24 + clock.hour >= middle * 24 + 2
    activity = _office_hours(rng, clock.set_forward(rng.choice([-1.0, 1.0]), since))
    return _driven(rng, _quiet(rng, activity, clock.weekday >= 5))


def _busy_service(rng: Generator, clock: Clock) -> Signal:
    """Several at once: random amplitudes, a hit ratio that falls with load, hourly batches, AR(1) noise."""
    amplitudes = rng.uniform(0.7, 1.3, clock.day[-1] + 1)
    batch = np.where(clock.hour % 1 < 1 / 6, rng.uniform(0.1, 0.4), 0.0)
    peak = _peak(rng)
    in_flight = _in_flight(rng, _office_hours(rng, clock) * amplitudes[clock.day] + batch, peak)
    hit_ratio = np.maximum(0.1, rng.uniform(0.7, 0.95) - rng.uniform(0.2, 0.5) * in_flight / peak)
    correlated = rng.uniform(0.05, 0.15) * _autoregressive(rng, clock.size, rng.uniform(0.2, 0.5))
    effect = 0.5 * _load_effect(rng, in_flight, peak)
    return Signal(_level(rng) + _hit_or_miss(rng, hit_ratio) + effect + correlated, in_flight)


def _worn_service(rng: Generator, clock: Clock) -> Signal:
    """Several at once: quiet weekends, a queue's convex effect, a backup at night, wander of 2%, missing data, a Pareto tail."""
    signal = _driven(rng, _quiet(rng, _office_hours(rng, clock), clock.weekday >= 5))
    backup = np.where((clock.hour >= 2) & (clock.hour < 2 + 1 / 3), np.log(rng.uniform(1.3, 2.0)), 0.0)
    tail = np.log1p(0.1 * rng.pareto(rng.uniform(1.5, 1.9), clock.size))
    wander = _wander(rng, clock.size, 3600 * rng.uniform(0.5, 4), 0.02)
    down, unreadable = _spans(rng, clock, 2, 1, 8), _spans(rng, clock, 4, 0.9, 1.1)
    return replace(signal, log_ttft=signal.log_ttft + backup + tail + wander, probed=~down, readable=~unreadable)


Kind = Callable[[Generator, Clock], Signal]

TUNING: dict[str, Kind] = {
    "independent": _independent,
    "hit_ratio_by_load": _hit_ratio_by_load,
    "office_hours": _office,
    "steady_office_hours": _steady_office,
    "friday_weekend": _friday_weekend,
    "holiday": _holiday,
    "ar_0.3": _ar_low,
    "queue": _queue,
    "hourly_batch": _hourly_batch,
    "random_amplitude": _random_amplitude,
    "two_replicas": _two_replicas,
    "timer_ticks": _timer_ticks,
    "missing_data": _missing_data,
    "busy_service": _busy_service,
}
HELD_OUT: dict[str, Kind] = {
    "bimodal": _bimodal,
    "load_scaled_noise": _load_scaled_noise,
    "weekend": _weekend,
    "steady_weekend": _steady_weekend,
    "weekday_trend": _weekday_trend,
    "ar_0.6": _ar_high,
    "stepped": _stepped,
    "nightly_backup": _nightly_backup,
    "daily_bursts": _daily_bursts,
    "slow_wander": _slow_wander,
    "heavy_tail": _heavy_tail,
    "low_variance": _low_variance,
    "daylight_saving": _daylight_saving,
    "worn_service": _worn_service,
}
KINDS = TUNING | HELD_OUT
LOAD_IS_IRRELEVANT = frozenset(
    {"independent", "bimodal", "heavy_tail", "ar_0.3", "ar_0.6", "slow_wander", "timer_ticks", "low_variance"}
)
