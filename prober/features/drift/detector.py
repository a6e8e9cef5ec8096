"""Drift detector of one latency against its own baseline, one sample at a time, with a stated rate of false alarms.

The residual of a sample after load (or hour) and predecessor is ranked among those of the baseline; the ranks feed a mixture of
sequential bets (`evidence`). An improvement raises no alarm: it starts a new baseline, as does an alarm that lasts longer than
`accept_after_s`. `step` changes a `Drift`, which belongs to the caller, in place.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, fields
from itertools import pairwise
from math import exp, log1p
from typing import Literal, NamedTuple

from prober.features.drift.baseline import DAY_S, QS, SPREAD_EVERY_S, Baseline, Blocks, fit, learnt, recalled, scores
from prober.features.drift.evidence import MATERIAL, Mixture, mixture
from prober.statistics.quantiles import MIN_SAMPLES_BY_QUANTILE, quantiles

Phase = Literal["learning", "provisional", "settled"]
Cause = Literal["regression", "load", "unknown"]
Event = Literal["learnt", "alarm", "recovered", "improved", "accepted"]

MARGIN = (
    2.0  # the bound on false alarms holds for a known baseline; half of them are reserved for errors of a learnt one
)
SMOOTHING = 60  # samples of load: noise in a regressor hides its effect
QUICK = 10  # samples of load, smoothed less: if it differs, the load is changing and the model lags
GAP = 20  # mean intervals: after a longer gap the predecessor is not used
DOUBT = 1.0  # standard errors of the model subtracted from each sample: a rare load is weak evidence
COARSE_DOUBT = 4.0  # for a provisional baseline, in addition to a material change of its level: it covers part of a day
RING = MIN_SAMPLES_BY_QUANTILE[0.99]  # latest samples: enough for every reported quantile
RECOVERED = math.log(1e4)  # log evidence against the change that ends an alarm
THIN = 8  # a provisional baseline keeps every 8th reference value, since the next one's samples are in memory too
SEED_CORRELATION = 0.6  # histograms have no order: assume the correlation of the worst tested case


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one signal."""

    rate_per_s: float  # mean rate of samples
    false_alarms_per_s: float = 1 / (30 * DAY_S)  # of this signal, at most
    material: float = 0.20  # smallest slowdown that matters; below half of it there is no alarm
    accept_after_s: float = 7 * DAY_S  # an older alarm becomes the new baseline

    def __post_init__(self) -> None:
        """Raise ValueError for values that are not finite and positive."""
        for each in fields(self):
            if not 0 < getattr(self, each.name) < math.inf:
                raise ValueError(f"{each.name} must be a finite number above 0, not {getattr(self, each.name)!r}")

    @property
    def threshold(self) -> float:
        """Evidence that raises an alarm; also the mean number of samples between false alarms, at least."""
        return MARGIN * self.rate_per_s / self.false_alarms_per_s


class Observation(NamedTuple):
    """One sample: time, latency in seconds, and load of the engine (such as running requests) if known."""

    unix_s: float
    value: float
    load: float | None = None


class DriftVerdict(NamedTuple):
    """Result after a sample."""

    phase: Phase  # learning: no baseline yet; provisional: a coarse one, with an error of up to `material`
    evidence: float  # on a log scale: 0 none, 1 raises an alarm; stays 1 while the alarm is active
    active: bool = False
    cause: Cause | None = None
    since_unix_s: float | None = None
    event: Event | None = None


@dataclass(frozen=True, slots=True)
class Shift:
    """Ratio of a quantile after the change to before it, at equal load, with its 95% interval from `count` samples."""

    q: float
    ratio: float
    lower: float
    upper: float
    count: int


@dataclass(slots=True)
class Ring:
    """Latest samples: times (whole seconds) and residuals."""

    count: int = 0
    times: "array[int]" = field(default_factory=lambda: array("I", [0]) * RING)
    residuals: "array[float]" = field(default_factory=lambda: array("f", [0]) * RING)

    def latest(self, count: int) -> Iterable[int]:
        """Indices of the latest `count` samples that are still stored, newest first."""
        return ((self.count - 1 - i) % RING for i in range(min(count, self.count, RING)))


@dataclass(slots=True)
class Alarm:
    """A detected change."""

    component: int  # the bet whose refutation ends it
    since_s: float
    raised_s: float
    after: int  # samples since the change
    against: float = 0.0  # log evidence that it is over


@dataclass(slots=True)
class Fit:
    """A baseline in the making."""

    spread: bool  # of the blocks spread over days
    run: Generator[None, None, Baseline]
    slices: int = 0


@dataclass(slots=True)
class Drift:
    """State of one signal, changed in place by `step`; `preserve` writes and reads it."""

    settings: Settings
    gap_s: float  # the longest between neighbours
    stretch: Blocks | None = None  # on the way to a provisional baseline
    spread: Blocks | None = None  # on the way to one over days
    fit: Fit | None = None
    baseline: Baseline | None = None
    mixture: Mixture | None = None  # this and the next three follow from the baseline and the settings
    table: "array[float]" = field(default_factory=lambda: array("f"))
    doubt: float = DOUBT
    allowance: float = 0.0  # what a whitened residual may be off by because the baseline is coarse
    settled: bool = False
    slower: list[float] = field(default_factory=list)  # evidence of each bet times its weight, and of an improvement
    faster: float = 0.0
    judged: int = 0  # samples since that evidence was nothing
    ring: Ring = field(default_factory=Ring)
    last_s: float = -math.inf
    before: float | None = None  # residual of the previous sample; None across a gap
    load: float | None = None  # smoothed; None once unknown for longer than it is smoothed over
    quick_load: float = 0.0
    load_s: float = -math.inf  # when it was last known, and samples since
    unloaded: int = 0
    alarm: Alarm | None = None
    busy_since_s: float | None = None


def fresh(settings: Settings) -> Drift:
    """A signal about which nothing is known."""
    return Drift(settings, GAP / settings.rate_per_s, stretch=Blocks(0.0), spread=Blocks(SPREAD_EVERY_S))


def seed(state: Drift, samples: Iterable[Observation]) -> Drift:
    """Give a state without a baseline one of samples from elsewhere, such as histograms; changed in place and returned.

    It is usable at once, with the guard of a provisional one, until days of own samples have settled. The order of samples
    within an hour need not mean anything: their correlation is taken as in the worst case tested, not estimated.
    Raises ValueError for fewer samples than a baseline needs, or bad ones.
    """
    blocks = recalled((each.unix_s, _log(each.value), each.load) for each in samples)
    if state.fit is not None and not state.fit.spread:
        state.fit = None
    adopt(state, learnt(blocks, correlation=SEED_CORRELATION, thin=THIN), settled=False)
    return state


def adopt(state: Drift, baseline: Baseline, *, settled: bool) -> None:
    """Judge by this baseline from now on."""
    state.baseline, state.settled = baseline, settled
    state.before = state.stretch = None
    if settled:
        state.spread = None
    follow(state)
    _forget(state)


def follow(state: Drift) -> None:
    """Make what follows from the baseline and the settings."""
    baseline = state.baseline
    assert baseline is not None
    state.mixture = mixture(baseline, state.settings.material, state.settings.threshold)
    state.table = scores(len(baseline.reference))
    state.doubt, state.allowance = guards(state.settings, baseline, settled=state.settled)


def guards(settings: Settings, baseline: Baseline, *, settled: bool) -> tuple[float, float]:
    """(standard errors of the model, log of the level after whitening) to take off every sample."""
    if settled:
        return DOUBT, 0.0
    return COARSE_DOUBT, math.log1p(settings.material) * (1 - baseline.correlation)


def step(state: Drift, observation: Observation) -> tuple[Drift, DriftVerdict]:
    """Take one sample; `state` is changed in place and returned. Raises ValueError for a value that is no positive number."""
    unix_s, value, load = observation
    log = _log(value)
    linked = abs(unix_s - state.last_s) <= state.gap_s  # probes may end in another order than they began in
    state.last_s = unix_s
    if not linked:
        state.before = None
    if load is not None or state.load is not None:
        _smooth(state, unix_s, load)
    event = _learn(state, unix_s, log, linked=linked) if state.spread is not None and state.alarm is None else None
    baseline = state.baseline
    if baseline is None:
        return state, DriftVerdict("learning", 0.0)
    if baseline.factor == "load" and state.load is None:
        return state, _abstained(state, unix_s)
    load = state.load or 0.0
    expected, error, slope = baseline.expected(unix_s, load)
    residual = log - expected
    phi, before = baseline.correlation, state.before
    whitened = baseline.whitened(residual, None) if before is None else residual - phi * before
    state.before = residual
    reference, table = baseline.reference, state.table
    doubt = state.doubt * error + state.allowance
    lead = slope * (state.quick_load - load) * (1 - phi)
    score = table[bisect_right(reference, whitened - doubt - (lead if lead > 0 else 0.0))]
    ring = state.ring
    at = ring.count % RING
    ring.times[at], ring.residuals[at] = int(unix_s), residual
    ring.count += 1
    if state.alarm is not None:
        return state, _alarmed(state, score, unix_s)
    faster = -table[bisect_right(reference, whitened + doubt - (lead if lead < 0 else 0.0))]
    return state, _judged(state, unix_s, score, faster, expected, event)


def _judged(
    state: Drift, unix_s: float, slower: float, faster: float, expected: float, event: Event | None
) -> DriftVerdict:
    """Evidence by the normal score against a slowdown and the one against an improvement."""
    mix = state.mixture
    assert mix is not None
    state.judged += 1
    total = mix.grow(state.slower, slower)
    if total >= mix.threshold:
        state.alarm = _found(state, mix, unix_s)
        return _active(state, "alarm")
    d, c = mix.faster
    state.faster = (state.faster + 1) * exp(d * faster + c)
    if state.faster >= mix.threshold:
        _relearn(state, everything=state.settled)
        return DriftVerdict("learning", 0.0, event="improved")
    evidence = log1p(total) * mix.unit
    if not state.settled:
        return DriftVerdict("provisional", evidence, False, None, None, event)
    baseline = state.baseline
    if baseline is not None and baseline.factor == "load":
        event = _busy(state, baseline, unix_s, expected) or event
        if state.busy_since_s is not None:
            return DriftVerdict("settled", evidence, True, "load", state.busy_since_s, event)
    elif state.load is not None and state.spread is None and baseline is not None and baseline.factor == "hour":
        # The load explains what the hour only stands for: learn again beside the old one.
        state.spread = Blocks(SPREAD_EVERY_S)
    return DriftVerdict("settled", evidence, False, None, None, event)


def shifts(state: Drift) -> list[Shift]:
    """How far the quantiles have moved since the change, those with enough samples since; none without an active regression.

    Ratios are of residuals, so at equal load; intervals by order statistics of the samples since the change (at most the
    latest `RING`). The baseline's own uncertainty, smaller with its 5,000 samples, is not in them.
    """
    if state.alarm is None or state.baseline is None:
        return []
    residuals = [state.ring.residuals[at] for at in state.ring.latest(state.alarm.after)]
    levels = dict(zip(QS, state.baseline.quantiles, strict=True))
    return [
        Shift(
            each.q,
            math.exp(each.estimate - levels[each.q]),
            math.exp(each.lower - levels[each.q]),
            math.exp(each.upper - levels[each.q]),
            each.count,
        )
        for each in quantiles(residuals, QS)
        if each.has_enough_samples and each.lower is not None and each.upper is not None
    ]


def _log(value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"a latency must be a finite number of seconds above 0, not {value!r}")
    return math.log(value)


def _smooth(state: Drift, unix_s: float, load: float | None) -> None:
    """The load, smoothed; held while it is unknown for no longer than it is smoothed over."""
    if load is None:
        state.unloaded += 1
        if state.unloaded > SMOOTHING:
            state.load = None
        return
    if state.load is None:
        state.load = state.quick_load = load
    else:
        state.load += (load - state.load) / SMOOTHING
        state.quick_load += (load - state.quick_load) / QUICK
    state.load_s, state.unloaded = unix_s, 0


def _learn(state: Drift, unix_s: float, log: float, *, linked: bool) -> Event | None:
    """Collect the sample and go on with the fit. Not while an alarm is active: what it is about belongs in no baseline."""
    stretch, spread = state.stretch, state.spread
    assert spread is not None
    for blocks in (stretch, spread):
        if blocks is not None:
            blocks.add(unix_s, log, state.load, linked=linked)
    if state.fit is None:
        if spread.full or (stretch is not None and stretch.full):
            state.fit = fitting(state, spread=spread.full)
        return None
    try:
        next(state.fit.run)
    except StopIteration as done:
        settled, state.fit = state.fit.spread, None
        adopt(state, done.value, settled=settled)
        return "learnt"
    state.fit.slices += 1
    return None


def fitting(state: Drift, *, spread: bool) -> Fit:
    """The fit of the blocks spread over days, or of those of one stretch."""
    blocks = state.spread if spread else state.stretch
    assert blocks is not None
    return Fit(spread, fit(blocks, thin=1 if spread else THIN))


def _relearn(state: Drift, *, everything: bool) -> None:
    """Without a baseline again. What was collected over days is kept unless `everything` must go."""
    state.baseline = state.mixture = None
    state.settled = False
    state.stretch = Blocks(0.0)
    if everything:
        state.spread, state.fit = Blocks(SPREAD_EVERY_S), None
    state.before = state.alarm = state.busy_since_s = None
    _forget(state)


def _forget(state: Drift) -> None:
    """Evidence from nothing."""
    state.slower = [0.0] * (state.mixture.components if state.mixture else 0)
    state.faster = 0.0
    state.judged = 0


def _found(state: Drift, mix: Mixture, unix_s: float) -> Alarm:
    """The alarm: since when is where the log evidence of the bet that won is largest, summed from there to now.

    Scores are made again from the residuals, without the guards that vary. This one step takes some 2 ms.
    """
    baseline, ring = state.baseline, state.ring
    assert baseline is not None
    won = max(range(mix.components), key=state.slower.__getitem__)
    total, best, after, since = 0.0, -math.inf, 1, unix_s
    places = list(ring.latest(state.judged))
    for count, (at, before) in enumerate(pairwise(places), 1):
        whitened = baseline.whitened(ring.residuals[at], ring.residuals[before])
        total += mix.log(won, state.table[bisect_right(baseline.reference, whitened - state.allowance)])
        if total > best:
            best, after, since = total, count, float(ring.times[at])
    if state.spread is not None:
        state.spread.cut()
    return Alarm(won if won >= len(mix.shifts) else MATERIAL, since, unix_s, after)


def _alarmed(state: Drift, score: float, unix_s: float) -> DriftVerdict:
    """While an alarm is active: is it over, or old enough to be the new normal?"""
    alarm, mix = state.alarm, state.mixture
    assert alarm is not None
    assert mix is not None
    alarm.after += 1
    alarm.against = max(0.0, alarm.against - mix.log(alarm.component, score))
    if alarm.against >= RECOVERED:
        state.alarm = None
        _forget(state)
        return DriftVerdict("settled" if state.settled else "provisional", 0.0, event="recovered")
    if unix_s - alarm.raised_s >= state.settings.accept_after_s:
        _relearn(state, everything=True)
        return DriftVerdict("learning", 0.0, event="accepted")
    return _active(state)


def _active(state: Drift, event: Event | None = None) -> DriftVerdict:
    assert state.alarm is not None
    assert state.baseline is not None
    cause: Cause = "regression" if state.baseline.factor == "load" else "unknown"
    return DriftVerdict("settled" if state.settled else "provisional", 1.0, True, cause, state.alarm.since_s, event)


def _busy(state: Drift, baseline: Baseline, unix_s: float, expected: float) -> Event | None:
    """Busier than the baseline ever was, and expected to be materially slower for it than it ever was."""
    busier = state.load is not None and state.load > baseline.busiest
    if not busier and state.busy_since_s is None:
        return None
    excess = (expected - baseline.slowest) / math.log1p(state.settings.material)
    if state.busy_since_s is None and excess >= 1:
        state.busy_since_s = unix_s
        return "alarm"
    if state.busy_since_s is not None and (not busier or excess < 0.5):
        state.busy_since_s = None
        return "recovered"
    return None


def _abstained(state: Drift, unix_s: float) -> DriftVerdict:
    """A baseline that needs the load says nothing without it; without it for as long as an alarm may last, learn anew."""
    state.before = None
    if unix_s - state.load_s > state.settings.accept_after_s:
        _relearn(state, everything=True)
        return DriftVerdict("learning", 0.0)
    if state.alarm is not None:
        return _active(state)
    assert state.mixture is not None
    evidence = log1p(sum(state.slower)) * state.mixture.unit
    return DriftVerdict("settled" if state.settled else "provisional", evidence)
