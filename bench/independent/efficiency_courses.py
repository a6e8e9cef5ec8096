"""Courses of an engine's counters over 21 to 45 days, each with the verdict of a person on call on its efficiency.

    for course in courses(held_out=False):
        course.rows, course.changes, course.verdict

The traffic is that of users: three to five tenants, each with its own rhythm of day and week, shared prefix, lengths and
predictability, whose rates, hits and acceptance depend on those of the hours before. Half of the services are those of offices, which
finish 0 to 5 requests an hour at night.

The troubles are public ones of real engines. Beside them are neighbours: courses of a healthy engine that look like a trouble.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Literal, get_args

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Signal = Literal[
    "prefix_hit_share", "acceptance", "preemptions_per_request", "offload_load_s", "energy_per_token", "step_s"
]
Demand = Literal["must_alarm", "must_not", "either"]
SIGNALS: tuple[Signal, ...] = get_args(Signal)

HOUR_S, DAY_S = 3_600.0, 86_400.0
BEGIN_UNIX_S = 1_796_601_600.0  # 2026-12-07 00:00 UTC, a Monday
LEARNT_DAYS = 14.0  # before a trouble begins: each weekday twice
DRAFT_TOKENS = 4  # per step


@dataclass(frozen=True, slots=True)
class Row:
    """A reading of the page. Counters are cumulative and begin at 0 at a restart. None: the page lacks it; all None: no page.

    prefix_*, draft_tokens, accepted_tokens, prompt_tokens, generated_tokens: tokens
    offload_load_seconds, offload_loads: loads of KV blocks from the host, time and number
    step_seconds, steps: of the engine's loop; mean_step_s: their ratio since the row before, None without a step
    """

    unix_s: float
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    draft_tokens: float | None = None
    accepted_tokens: float | None = None
    preemptions: float | None = None
    finished_requests: float | None = None
    prompt_tokens: float | None = None
    generated_tokens: float | None = None
    offload_load_seconds: float | None = None
    offload_loads: float | None = None
    energy_joules: float | None = None
    step_seconds: float | None = None
    steps: float | None = None
    mean_step_s: float | None = None


COUNTERS = tuple(column.name for column in fields(Row) if column.name not in ("unix_s", "mean_step_s"))
OPTIONAL: dict[Signal, tuple[str, ...]] = {  # counters that not every engine has
    "acceptance": ("draft_tokens", "accepted_tokens"),
    "offload_load_s": ("offload_load_seconds", "offload_loads"),
    "energy_per_token": ("energy_joules",),
}


@dataclass(frozen=True, slots=True)
class KnownChange:
    """A change that a prober sees. kind: `restart`, `version`, `model`, `size`, `driver`, or a flag's name"""

    unix_s: float
    kind: str
    old: str = ""
    new: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of a person on call. An alarm before `begin_unix_s` is false in any course.

    must_alarm: one alarm or more that names one of `signals`, at most `latest_delay_h` after the begin; alarms of `consequences` are no
        false ones. An alarm that is raised anew more than a day after the end is false
    must_not: each alarm is a false one
    either: an alarm of `signals` after the begin counts neither way, another one is false
    """

    demand: Demand
    why: str
    signals: tuple[Signal, ...] = ()
    begin_unix_s: float | None = None
    end_unix_s: float | None = None
    latest_delay_h: float | None = None
    consequences: tuple[Signal, ...] = ()


@dataclass(frozen=True, slots=True)
class Course:
    """An engine's page over weeks. changes: in order of time. zone_s: local time less UTC"""

    name: str
    step_s: float
    zone_s: float
    rows: tuple[Row, ...]
    changes: tuple[KnownChange, ...]
    verdict: Verdict


def _wander(rng: Generator, steps: int, step_s: float, hours: float, sd: float) -> Floats:
    """An AR(1) of mean 0 with a time constant in hours."""
    phi = np.exp(-step_s / HOUR_S / hours)
    white = rng.standard_normal(steps) * sd * np.sqrt(1 - phi * phi)
    values = np.empty(steps)
    value = sd * rng.standard_normal()
    for at in range(steps):
        value = values[at] = phi * value + white[at]
    return values


def _logistic(values: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-values)))


def _hump(hour: Floats, peak: float, width: float) -> Floats:
    return np.asarray(np.exp(-(((hour - peak + 12) % 24 - 12) ** 2) / 2 / width**2))


def _rhythm(rng: Generator, hour: Floats, weekday: NDArray[np.int64], is_office: bool) -> Floats:
    """Activity of an office (two humps, empty nights, quiet weekends) or of people at home (evenings). About 1 at most."""
    if is_office:
        humps = np.maximum(_hump(hour, rng.uniform(9.5, 11.5), 1.7), _hump(hour, rng.uniform(14, 16.5), 1.9))
        return np.asarray((0.0007 + humps) * np.where(weekday >= 5, rng.uniform(0.05, 0.3), 1.0))
    evening = 0.02 + 0.98 * _hump(hour, rng.uniform(19, 22), 3.5)
    return np.asarray(evening * np.where(weekday >= 5, rng.uniform(1.0, 1.5), 1.0))


class _Service:
    """A healthy service that a kind changes before it is played. Arrays have shape (steps,) or (tenants, steps).

    rates: requests per hour; hit, accept: shares; extra_s: of each step; needs: what the page has in any case
    restarts: share of the counters that stays, by step
    """

    def __init__(self, rng: Generator, peak_per_h: float) -> None:
        """A service with about this many requests in its busiest hours."""
        self.rng, self.days = rng, int(rng.integers(21, 46))
        step_s = self.step_s = float(rng.choice([600.0, 900.0, 1800.0, 3600.0]))
        self.zone_s, size = HOUR_S * float(rng.integers(-9, 12)), round(self.days * DAY_S / step_s)
        since_s: Floats = step_s * np.arange(size, dtype=np.float64)
        self.day: Floats = since_s / DAY_S
        self.hour: Floats = (self.zone_s + since_s) % DAY_S / HOUR_S
        self.weekday = np.floor((self.zone_s + since_s) / DAY_S).astype(np.int64) % 7
        tenants, at_home = int(rng.integers(3, 6)), int(rng.integers(2))
        weights = rng.dirichlet(np.full(tenants, 2.0))
        self.rates, self.hit, self.accept = (np.empty((tenants, size)) for _ in range(3))
        for tenant in range(tenants):
            activity = _rhythm(rng, self.hour, self.weekday, is_office=tenant < tenants - at_home)
            surges = np.ones(size)
            for begin in rng.integers(0, size, rng.poisson(self.days / 3)):
                surges[begin : begin + max(1, int(rng.uniform(0.5, 3) * HOUR_S / step_s))] = rng.uniform(1.5, 4)
            own = np.exp(_wander(rng, size, step_s, rng.uniform(2, 10), rng.uniform(0.15, 0.35)))
            self.rates[tenant] = peak_per_h * weights[tenant] * activity * surges * own
            usual = (rng.uniform(0.75, 0.9), rng.uniform(0.35, 0.6), rng.uniform(0.55, 0.75), rng.uniform(0.1, 0.3))
            share = usual[tenant % 4]
            own = _wander(rng, size, step_s, rng.uniform(3, 20), 0.2)
            self.hit[tenant] = _logistic(np.log(share / (1 - share)) + own)
            level = rng.uniform(-0.2, 1.2)
            self.accept[tenant] = _logistic(level + _wander(rng, size, step_s, rng.uniform(3, 20), 0.12))
        self.prompts = np.exp(rng.uniform(np.log(500), np.log(6000), tenants))
        self.outputs = np.exp(rng.uniform(np.log(80), np.log(500), tenants))
        self.preempt: Floats = np.full(size, rng.uniform(0.005, 0.015))
        slowness = np.log(rng.uniform(0.01, 0.08)) + _wander(rng, size, step_s, rng.uniform(2, 12), 0.15)
        self.load_s = np.exp(slowness)
        self.energy = np.exp(_wander(rng, size, step_s, 12, 0.015))
        self.extra_s = np.zeros(size)
        self.is_readable, self.has_drafts = np.ones(size, dtype=np.bool_), np.ones(size, dtype=np.bool_)
        self.needs: tuple[Signal, ...] = ()
        self.restarts: dict[int, float] = {}
        self.changes: list[KnownChange] = []

    @property
    def size(self) -> int:
        """Number of steps."""
        return self.hour.size

    def unix_s(self, at: int) -> float:
        """Time of the begin of a step."""
        return BEGIN_UNIX_S + at * self.step_s

    def steps(self, hours: float) -> int:
        """Number of steps in some hours."""
        return round(hours * HOUR_S / self.step_s)

    def moment(self, last_day: float | None = None, is_working: bool = False) -> int:
        """A random step after LEARNT_DAYS and five days before the end; on request, in the hours of work."""
        last_day = self.days - 5.0 if last_day is None else last_day
        while True:
            at = int(self.rng.uniform(LEARNT_DAYS, max(last_day, LEARNT_DAYS + 2)) * DAY_S / self.step_s)
            if not is_working or (self.weekday[at] < 5 and 8 < self.hour[at] < 11):
                return at

    def until(self, at: int, low_days: float, high_days: float) -> int:
        """A step some days later, at most the last."""
        return min(self.size - 1, at + int(self.rng.uniform(low_days, high_days) * DAY_S / self.step_s))

    def restart(self, at: int, kind: str = "restart", old: str = "", new: str = "", stays: float = 0.0) -> None:
        """Counters go to 0, prefixes are cold for an hour, and the prober knows."""
        self.restarts[at] = stays
        self.changes.append(KnownChange(self.unix_s(at), "restart"))
        if kind != "restart":
            self.changes.append(KnownChange(self.unix_s(at), kind, old, new))
        warm = np.clip(np.arange(self.steps(1.0)) / max(1, self.steps(1.0)), 0.05, 1.0)
        part = self.hit[:, at : at + warm.size]
        part *= np.maximum(stays, warm[: part.shape[1]])

    def add_tenant(self, rates: Floats, hit: float, prompt: float, output: float) -> None:
        """Another tenant with steady habits."""
        self.rates = np.vstack((self.rates, rates))
        self.hit = np.vstack((self.hit, np.full(self.size, hit)))
        self.accept = np.vstack((self.accept, np.full(self.size, float(self.accept.mean()))))
        self.prompts = np.append(self.prompts, prompt)
        self.outputs = np.append(self.outputs, output)


def _increments(of: _Service) -> dict[str, Floats]:
    """What each counter grows by in each step."""
    rng, hours = of.rng, of.step_s / HOUR_S
    count = rng.poisson(of.rates * hours).astype(np.float64)
    load = of.rates.sum(axis=0) / max(1.0, float(np.quantile(of.rates.sum(axis=0), 0.95)))
    prompts = np.where(count > 0, rng.gamma(np.maximum(count, 1) / 0.8) * 0.8 * of.prompts[:, None], 0.0)
    outputs = np.where(count > 0, rng.gamma(np.maximum(count, 1) / 0.6) * 0.6 * of.outputs[:, None], 0.0)
    shares = np.clip(of.hit * (1 - 0.12 * np.minimum(load, 1.5)), 0.0, 0.98)  # a busy cache evicts more
    turns = np.maximum(count / 3, 0.7)  # requests of one conversation find the same
    hits = prompts * np.where(
        shares > 0, rng.beta(np.maximum(shares, 1e-3) * turns, np.maximum(1 - shares, 1e-3) * turns), 0
    )
    finished, generated = count.sum(axis=0), outputs.sum(axis=0)
    level = np.where(of.accept > 0, rng.beta(np.maximum(of.accept, 1e-3) * turns * 8, (1 - of.accept) * turns * 8), 0)
    accepted_share = np.where(generated > 0, (level * outputs).sum(axis=0) / np.maximum(generated, 1), 0.0)
    per_step = np.where(of.has_drafts, 1 + DRAFT_TOKENS * accepted_share, 1.0)
    drafts = np.where(of.has_drafts, generated * DRAFT_TOKENS / per_step, 0.0)
    step_s = (0.016 + 0.012 * np.minimum(load, 1.5)) * rng.lognormal(0, 0.03, of.size) + of.extra_s
    running = np.maximum(1.0, generated / of.step_s * step_s / per_step)
    steps = generated / per_step / running
    mean_preemptions = finished * of.preempt * np.minimum(load / max(0.05, float(load.mean())), 3.0) * 0.6
    loads = rng.poisson(0.3 * finished).astype(np.float64)
    load_seconds = np.where(loads > 0, rng.gamma(np.maximum(loads, 1) / 1.5) * 1.5, 0) * of.load_s * (1 + 0.5 * load)
    busy_s = np.minimum(of.step_s, steps * step_s)
    watts = 90 * of.step_s + 250 * busy_s
    energy = of.energy * (watts + 0.02 * (prompts - hits).sum(axis=0) + 0.6 * generated)
    return {
        "prefix_queries": prompts.sum(axis=0).round(),
        "prefix_hits": np.minimum(hits, prompts).sum(axis=0).round(),
        "draft_tokens": drafts.round(),
        "accepted_tokens": (drafts * accepted_share).round(),
        "preemptions": rng.poisson(rng.gamma(1.5, 1 / 1.5, of.size) * mean_preemptions).astype(np.float64),
        "finished_requests": finished,
        "prompt_tokens": prompts.sum(axis=0).round(),
        "generated_tokens": generated.round(),
        "offload_load_seconds": load_seconds,
        "offload_loads": loads,
        "energy_joules": energy,
        "step_seconds": steps.round() * step_s,
        "steps": steps.round(),
    }


def _cumulated(increments: Floats, restarts: dict[int, float]) -> Floats:
    totals, total = np.empty_like(increments), 0.0
    for begin, end in pairwise([0, *sorted(restarts), increments.size]):
        total *= restarts.get(begin, 1.0)
        totals[begin:end] = total + np.cumsum(increments[begin:end])
        total = float(totals[end - 1])
    return totals


@dataclass(frozen=True, slots=True)
class _Judged:
    """A verdict in steps. delay_h, requests: the latest delay is the later of so many hours and so many requests after the begin."""

    demand: Demand
    why: str
    signals: tuple[Signal, ...] = ()
    begin: int | None = None
    end: int | None = None
    delay_h: float = 0.0
    requests: int = 0
    consequences: tuple[Signal, ...] = ()


def _silent(why: str) -> _Judged:
    return _Judged("must_not", why)


def _played(name: str, of: _Service, judged: _Judged) -> Course:
    absent: set[str] = {
        counter
        for signal, counters in OPTIONAL.items()
        if of.rng.random() < 0.2 and signal not in (*judged.signals, *of.needs) and of.has_drafts.all()
        for counter in counters
    }
    grown = _increments(of)
    totals = {name: _cumulated(grown[name], of.restarts).tolist() for name in COUNTERS if name not in absent}
    rows = []
    for at in range(of.size):
        values = {name: total[at] for name, total in totals.items()} if of.is_readable[at] else {}
        if of.is_readable[at] and grown["steps"][at]:
            values["mean_step_s"] = float(grown["step_seconds"][at] / grown["steps"][at])
        rows.append(Row(of.unix_s(at + 1), **values))
    delay_h = None
    if judged.demand == "must_alarm" and judged.begin is not None:
        finished = np.cumsum(grown["finished_requests"][judged.begin :])
        enough = int(np.searchsorted(finished, judged.requests))
        delay_h = max(judged.delay_h, enough * of.step_s / HOUR_S + 1)
    begin, end = (None if at is None else of.unix_s(at) for at in (judged.begin, judged.end))
    verdict = Verdict(judged.demand, judged.why, judged.signals, begin, end, delay_h, judged.consequences)
    changes = tuple(sorted(of.changes, key=lambda change: change.unix_s))
    return Course(name, of.step_s, of.zone_s, tuple(rows), changes, verdict)


# Troubles


def _factor(
    array: Literal["hit", "accept", "load_s", "energy"],
    factor: float,
    signal: Signal | None,
    why: str,
    delay_h: float = 0.0,
    requests: int = 0,
    consequences: tuple[Signal, ...] = (),
    change: tuple[str, str, str] | None = None,
    lasts_days: tuple[float, float] | None = None,
) -> Callable[[_Service], _Judged]:
    """A quantity is multiplied, for good or for some days; with a known change, which is undone at the end. No signal: it is better."""

    def kind(of: _Service) -> _Judged:
        at = of.moment(is_working=change is not None)
        end = of.until(at, *lasts_days) if lasts_days and of.rng.random() < 0.7 else None
        getattr(of, array)[..., at:end] *= factor
        if change is not None:
            of.restart(at, *change)
            if end is not None:
                of.restart(end, change[0], change[2], change[1])
        if signal is None:
            of.needs = ("offload_load_s",)
            return _silent(why)
        return _Judged("must_alarm", why, (signal,), at, end, delay_h, requests, consequences)

    return kind


def _slow_steps(of: _Service) -> _Judged:
    """Each step takes 30 ms longer, until a restart."""
    at = of.moment()
    end = of.until(at, 2, 4.5)
    of.extra_s[at:end] = 0.03
    of.restart(end)
    return _Judged("must_alarm", "+30 ms a step until the restart", ("step_s",), at, end, 6, 150, ("energy_per_token",))


def _growing_steps(of: _Service) -> _Judged:
    """Each step takes 1 ms longer every hour, up to 30 ms, until a restart."""
    at = of.moment()
    end = of.until(at, 2.5, 4.5)
    of.extra_s[at:end] = np.minimum(0.03, 0.001 * np.arange(end - at) * of.step_s / HOUR_S)
    of.restart(end)
    why = "+24 ms after a day; the first hours are too little to see"
    return _Judged("must_alarm", why, ("step_s",), at, end, 36, 300, ("energy_per_token",))


def _acceptance_lost(of: _Service) -> _Judged:
    """No draft token is accepted for some hours of work; then nothing moves, until a restart."""
    at = of.moment(is_working=True)
    stall = at + of.steps(of.rng.uniform(6, 8))
    end = stall + of.steps(of.rng.uniform(2, 6))
    of.accept[:, at:stall] = 0.0
    of.rates[:, stall:end] = 0.0
    of.restart(end)
    why = "no draft token is accepted; the stall that follows is another alarm's"
    return _Judged("must_alarm", why, ("acceptance",), at, end, 6, 100, ("step_s", "energy_per_token"))


def _small_cache(of: _Service) -> _Judged:
    """A flag lowers the KV cache: half a preemption per request."""
    at = of.moment(is_working=True)
    of.preempt[at:] = 0.5
    of.hit[:, at:] *= of.rng.uniform(0.7, 0.9)
    of.restart(at, "gpu_memory_utilization", "0.92", "0.6")
    why = "half a preemption per request since the flag"
    return _Judged("must_alarm", why, ("preemptions_per_request",), at, None, 8, 300, ("prefix_hit_share",))


def _preempted_at_peaks(of: _Service) -> _Judged:
    """A flag lets more requests run than the cache holds: preemptions in busy hours only."""
    at = of.moment(is_working=True)
    busy = of.rates.sum(axis=0) > 0.5 * np.quantile(of.rates.sum(axis=0), 0.95)
    of.preempt[at:] = np.where(busy[at:], 0.5, of.preempt[at:])
    of.restart(at, "max_num_seqs", "64", "512")
    why = "half a preemption per request in busy hours"
    return _Judged("must_alarm", why, ("preemptions_per_request",), at, None, 24, 400)


def _half_of_ranks(of: _Service) -> _Judged:
    """Two ranks on one page: one of them comes back from a restart without its prefix cache. Sums fall by half there."""
    at = of.moment()
    of.hit[:, at:] *= 0.5
    of.restart(at, stays=0.5)
    why = "one rank of two finds nothing since its restart"
    return _Judged("must_alarm", why, ("prefix_hit_share",), at, None, 24, 1500, ("energy_per_token",))


def _rollout(of: _Service) -> _Judged:
    """A gateway that does not route by prefix takes over in three steps within two days."""
    at = of.moment()
    for part, hours in ((0.1, 0), (0.5, 24), (1.0, 48)):
        begin = at + of.steps(hours)
        end = of.size if hours == 48 else at + of.steps(hours + 24)
        of.hit[:, begin:end] *= 1 - 0.55 * part
    why = "less than half of the hits in the end; a tenth of the way is too little to see"
    return _Judged("must_alarm", why, ("prefix_hit_share",), at, None, 72, 1500, ("energy_per_token",))


# Neighbours


def _healthy(of: _Service) -> _Judged:
    """No trouble."""
    return _silent("a healthy engine")


def _weekend_mix(of: _Service) -> _Judged:
    """At weekends a tenant without a shared prefix sends most requests."""
    peak = float(np.quantile(of.rates.sum(axis=0), 0.9))
    of.add_tenant(np.where(of.weekday >= 5, 0.7 * peak * (0.05 + _hump(of.hour, 15, 4)), 0.0), 0.05, 1500, 300)
    return _silent("each weekend since the start has another mix")


def _nightly_batch(of: _Service) -> _Judged:
    """Every night a job sends unique prompts for two hours, some nights later or not at all."""
    night = np.floor(of.day + of.zone_s / DAY_S - 0.5).astype(np.int64)
    night -= night.min()
    late = of.rng.uniform(0, 1.5, night.max() + 1)[night]
    runs = (of.rng.random(night.max() + 1) < 0.9)[night]
    is_on = runs & (of.hour >= 1 + late) & (of.hour < 3 + late)
    of.add_tenant(np.where(is_on, of.rng.uniform(0.5, 2) * float(of.rates.sum(axis=0).max()), 0.0), 0.0, 3000, 60)
    return _silent("a job that ran every night since the start")


def _weekly_batch(of: _Service) -> _Judged:
    """Each Sunday a job sends unique prompts for six hours."""
    is_on = (of.weekday == 6) & (of.hour >= 13) & (of.hour < 19)
    of.add_tenant(np.where(is_on, float(of.rates.sum(axis=0).max()), 0.0), 0.0, 2500, 40)
    return _silent("a job that ran every week since the start")


def _deployments(of: _Service) -> _Judged:
    """A restart a week: an hour of cold prefixes."""
    for week in range(of.days // 7):
        of.restart(of.steps(24 * (7 * week + of.rng.uniform(1, 6))))
    return _silent("a cold hour after a restart is what a restart costs")


def _crashes(of: _Service) -> _Judged:
    """Four restarts within six hours."""
    at = of.moment()
    for hours in (0.0, 1.5, 3.5, 6.0):
        of.restart(at + of.steps(hours))
    return _silent("crashes are another alarm's; the cold hours follow from them")


def _new_tenant(of: _Service) -> _Judged:
    """From a day on a tenant with unique prompts is here for good."""
    at = of.moment(is_working=True)
    rates = 0.8 * of.rates.sum(axis=0)
    rates[:at] = 0.0
    of.add_tenant(rates, 0.02, 4000, 200)
    return _Judged("either", "the share did change for good, and the engine did not: a note is right", SIGNALS, at)


def _tenant_leaves(of: _Service) -> _Judged:
    """The tenant with the most hits leaves for good."""
    at = of.moment()
    of.rates[0, at:] = 0.0
    return _Judged("either", "the share did change for good, and the engine did not", SIGNALS, at)


def _month_end(of: _Service) -> _Judged:
    """For two days one tenant sends as many requests as all others at their peak."""
    at = of.moment(is_working=True)
    of.rates[-1, at : at + of.steps(48)] += 0.6 * float(np.quantile(of.rates.sum(axis=0), 0.95))
    return _Judged("either", "an odd mix for two days", SIGNALS, at, at + of.steps(48))


def _quiet(days: float, share: float, weekdays: tuple[int, ...], why: str) -> Callable[[_Service], _Judged]:
    """From the fifteenth day on, for some days, users send a share of their requests on these days of the week."""

    def kind(of: _Service) -> _Judged:
        of.rates[:, (of.day >= LEARNT_DAYS) & (of.day < LEARNT_DAYS + days) & np.isin(of.weekday, weekdays)] *= share
        of.needs = ("energy_per_token",)
        return _silent(why)

    return kind


def _holiday(of: _Service) -> _Judged:
    """A working day with the traffic of a Sunday."""
    local_day = np.floor(of.day + of.zone_s / DAY_S)
    of.rates[:, local_day == local_day[of.moment(is_working=True)]] *= 0.1
    return _silent("a quiet day")


def _drafts(is_off_later: bool) -> Callable[[_Service], _Judged]:
    """A known flag ends speculative decoding for good, and its counters stay at 0; or begins it."""

    def kind(of: _Service) -> _Judged:
        at = of.moment(is_working=True)
        of.has_drafts[slice(at, None) if is_off_later else slice(at)] = False
        of.restart(at, "speculative_config", *(("ngram", "None") if is_off_later else ("None", "ngram")))
        return _Judged("either", "no drafts are no bad drafts; the rest is a decision", WORK, at)

    return kind


def _no_page(of: _Service) -> _Judged:
    """The page is away for hours, three times; the counters go on."""
    for begin in of.rng.uniform(LEARNT_DAYS, of.days - 1, 3):
        of.is_readable[of.steps(24 * begin) : of.steps(24 * begin + of.rng.uniform(2, 20))] = False
    return _silent("no page is no zero")


def _flickering_page(of: _Service) -> _Judged:
    """A third of the readings fail; once for thirty hours, in which the engine restarts."""
    of.is_readable &= of.rng.random(of.size) > 0.33
    at = of.moment()
    of.is_readable[at : at + of.steps(30)] = False
    of.restart(at + of.steps(10))
    return _silent("no page is no zero")


def _clock_change(of: _Service) -> _Judged:
    """From a night on users come an hour earlier."""
    at, hour = of.steps(24 * (LEARNT_DAYS + 2)), of.steps(1)
    of.rates[:, at : of.size - hour] = of.rates[:, at + hour :].copy()
    return _silent("the same day, an hour earlier")


Kind = Callable[[_Service], _Judged]
BUSY_PER_H = 3000.0  # requests in the busiest hours, at most
SMALL_PER_H = {"prefix_cache_off_on_small_service": 120.0, "healthy_small": 120.0, "healthy_tiny": 5.0}
UPGRADE = ("version", "0.31.0", "0.32.0")
ENERGY: tuple[Signal, ...] = ("energy_per_token",)
WORK: tuple[Signal, ...] = ("energy_per_token", "step_s")

DEVELOPMENT: dict[str, Kind] = {
    "prefix_cache_off_after_upgrade": _factor(
        "hit", 0.0, "prefix_hit_share", "no hit", 6, 150, WORK, UPGRADE, lasts_days=(2, 5)
    ),
    "steps_30_ms_longer_until_restart": _slow_steps,
    "acceptance_zero_then_stall": _acceptance_lost,
    "offload_ten_times_slower": _factor(
        "load_s", 10, "offload_load_s", "ten times as slow", 8, 200, lasts_days=(2, 4.5)
    ),
    "preemptions_after_flag": _small_cache,
    "energy_after_driver": _factor(
        "energy", 1.25, "energy_per_token", "+25%", 72, 6000, change=("driver", "580.65", "590.44")
    ),
    "hits_halve_at_gateway": _factor(
        "hit", 0.5, "prefix_hit_share", "half of the hits", 24, 1500, ENERGY, lasts_days=(3, 5)
    ),
    "healthy": _healthy,
    "healthy_tiny": _healthy,
    "weekend_mix": _weekend_mix,
    "nightly_batch": _nightly_batch,
    "weekly_deployments": _deployments,
    "new_tenant": _new_tenant,
    "quiet_week": _quiet(7, 0.03, tuple(range(7)), "idle power on fewer tokens is no loss of efficiency"),
    "speculation_off_by_flag": _drafts(is_off_later=True),
    "page_away": _no_page,
    "holiday": _holiday,
    "offload_quicker": _factor("load_s", 1 / 3, None, "it is better", change=UPGRADE),
}
DISK = ("kv_offloading_backend", "native", "disk")
TUNED = ("model", "llama-70b", "llama-70b-tuned")
HELD_OUT: dict[str, Kind] = {
    "half_of_ranks_without_cache": _half_of_ranks,
    "prefix_cache_off_on_small_service": _factor("hit", 0.0, "prefix_hit_share", "no hit", 6, 150, WORK, UPGRADE),
    "steps_grow_until_restart": _growing_steps,
    "acceptance_quarter_after_model": _factor(
        "accept", 0.25, "acceptance", "the drafts do not fit", 12, 200, WORK, TUNED
    ),
    "offload_to_disk": _factor("load_s", 10, "offload_load_s", "ten times as slow", 12, 200, change=DISK),
    "preemptions_at_peaks": _preempted_at_peaks,
    "energy_after_power_setting": _factor("energy", 1.25, "energy_per_token", "+25%", 72, 6000, lasts_days=(4, 6)),
    "hits_halve_in_steps": _rollout,
    "healthy_small": _healthy,
    "month_end": _month_end,
    "weekly_batch": _weekly_batch,
    "crashes": _crashes,
    "tenant_leaves": _tenant_leaves,
    "shutdown": _quiet(99, 0.005, tuple(range(7)), "a request now and then says nothing"),
    "speculation_on_by_flag": _drafts(is_off_later=False),
    "page_flickers": _flickering_page,
    "long_weekend": _quiet(7, 0.08, (3, 4), "quiet days"),
    "clock_change": _clock_change,
    "offload_much_quicker": _factor("load_s", 0.1, None, "it is better", lasts_days=(3, 5)),
}


def course(kind: str, index: int) -> Course:
    """Course `index` of a kind of either half; the seeds of the halves have nothing in common."""
    half = DEVELOPMENT if kind in DEVELOPMENT else HELD_OUT
    rng = np.random.default_rng([zlib.crc32(kind.encode()), index, 52_901 if half is HELD_OUT else 11])
    service = _Service(rng, SMALL_PER_H.get(kind, BUSY_PER_H) * float(rng.uniform(0.3, 1.0)))
    return _played(f"{kind}/{index}", service, half[kind](service))


def courses(held_out: bool, per_kind: int = 3) -> Iterator[Course]:
    """All courses of a half, `per_kind` of each kind."""
    for kind in HELD_OUT if held_out else DEVELOPMENT:
        for index in range(per_kind):
            yield course(kind, index)
