"""Detects drift of one latency from its own baseline, one sample at a time, with a stated rate of false alarms.

A sample's residual, after load (or hour) and previous sample are accounted for, is ranked among the baseline's; the ranks
feed a mixture of sequential bets (`evidence`). An improvement raises no alarm: it starts a new baseline, as does an alarm that lasts
longer than `accept_after`. `step` changes a `Drift`, which belongs to the caller, in place.
"""

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from math import exp, log1p
from statistics import median

from prober.features.drift import first_days
from prober.features.drift.baseline import Baseline, is_weekend, scores
from prober.features.drift.blocks import (
    DAY_S,
    SLOT_S,
    SPREAD_EVERY_S,
    WEEK_EVERY_S,
    Blocks,
    blocks_of_samples,
    week_slots,
)
from prober.features.drift.evidence import Mixture, mixture
from prober.features.drift.fitting import learn_baseline
from prober.features.drift.state import (
    DOUBT_ERRORS,
    LOAD_SAMPLES,
    PATIENCE,
    RING_SAMPLES,
    Alarm,
    Cause,
    Drift,
    DriftVerdict,
    Event,
    Improvement,
    LoadState,
    Observation,
    Phase,
    Visit,
)

# For a provisional baseline, in addition to a material change of its level: it covers only a part of a day.
PROVISIONAL_DOUBT_ERRORS = 4.0
# Every tenth reference value is stored, because the samples of the next baseline are in memory too.
PROVISIONAL_THINNING = 10
UNSEEN_CHANGES = 6.0  # material changes by which an unseen half hour may be slower than all others
MIN_VISIT_SHARE = 0.25  # of a half hour's samples, needed to know its level
IMPROVEMENT_S = 1.5 * DAY_S
EXTEND_AFTER_S = 3_600.0  # with an unlearned load: then a week is learned while the baseline stays in use
MIN_SEED_S = 2 * DAY_S  # of past samples, for a baseline over days
MIN_STEP_S = 60.0  # of the wall clock; a smaller one changes no verdict
MIN_CHANGE_S = 180.0  # for a slowdown after half of the evidence: a burst of three minutes is no drift
MAX_DEPENDENCE = 6.0  # times so long where samples depend on each other over minutes: queues stay full
HELD_SHARE = 0.05  # of the evidence until a slowdown has lasted: one slow sample after a burst must not complete it
# A slowdown that ends by itself within a day shows that the level wanders more than the baseline knew: the next one needs more
# evidence, and less again after a week without one.
CAUTION_GROWTH, MAX_CAUTION, CAUTION_S = 2.0, 16.0, 7 * DAY_S
SEED_CORRELATION = 0.6  # histograms have no order: assumes the correlation of the worst tested case


def seed(state: Drift, samples: Iterable[Observation]) -> Drift:
    """Learn a provisional baseline from samples of another source, such as histograms. Changes `state` in place and returns it.

    Samples within an hour may be in any order: their correlation is not estimated, but that of the worst tested case.
    Raises ValueError for too few or invalid samples.
    """
    blocks = blocks_of_samples((sample.unix_s, _log(sample.value), sample.load) for sample in samples)
    adopt(state, learn_baseline(blocks, correlation=SEED_CORRELATION, thin=PROVISIONAL_THINNING), settled=False)
    state.covers_days = blocks.begun[-1] - blocks.begun[0] >= MIN_SEED_S
    return state


def adopt(state: Drift, baseline: Baseline, *, settled: bool) -> None:
    """Use this baseline from now on. Without loads, a baseline over three days is later replaced by one over a week."""
    if settled:
        is_of_days = state.spread is not None and state.spread.every_s < WEEK_EVERY_S
        state.spread = Blocks(WEEK_EVERY_S) if is_of_days and baseline.factor == "hour" else None
    state.baseline, state.settled = baseline, settled
    state.covers_days = settled or (state.covers_days and baseline.busiest < math.inf)
    state.before = state.stretch = state.alarm = None
    state.caution = 1.0
    state.slowest_visit = -math.inf
    derive(state)
    _reset_evidence(state)


def derive(state: Drift) -> None:
    """Compute the fields that follow from the baseline and the settings."""
    baseline, material = state.baseline, state.settings.spec.material
    assert baseline is not None
    state.mixture = mixture(baseline, material, state.settings.threshold, state.settings.multiples)
    state.ring.fifths = (state.ring.fifths or array("B", [0]) * RING_SAMPLES) if baseline.cuts else array("B")
    state.tables = tuple(scores(len(reference)) for reference in baseline.references)
    state.doubt, state.allowance = DOUBT_ERRORS, 0.0
    if not state.settled:
        state.doubt, state.allowance = PROVISIONAL_DOUBT_ERRORS, math.log1p(material) * (1 - baseline.correlation)


def follow_clock(state: Drift, boot: str, unix_s: float, monotonic_s: float) -> None:
    """If the wall clock was set since the last sample, move the state's times with it: hours follow it, durations do not.

    Within one boot of the machine (id `boot`, empty if unknown) the monotonic clock shows the change. Otherwise it is unknown, and a
    last sample in the future counts as now.
    """
    offset_s = unix_s - monotonic_s
    step_s = offset_s - state.offset_s if boot and boot == state.boot else min(0.0, unix_s - state.last_s)
    state.boot, state.offset_s = boot, offset_s
    if abs(step_s) < MIN_STEP_S:
        return
    for part, names in (
        (state, ("last_s", "load_s", "caution_s", "outside_since_s", "suspected_s", "unusual_since_s")),
        (state.alarm, ("since_s", "raised_s")),
        (state.improvement, ("since_s",)),
    ):
        for name in names:
            if part is not None and (at_s := getattr(part, name)) is not None:
                setattr(part, name, at_s + step_s)
    state.ring.times = array("d", (at_s + step_s for at_s in state.ring.times))
    for blocks in (state.stretch, state.spread):
        if blocks is not None:
            blocks.begun = array("d", (at_s + step_s for at_s in blocks.begun))


def step(state: Drift, observation: Observation) -> tuple[Drift, DriftVerdict]:
    """Process one sample; changes `state` in place and returns it. Raises ValueError unless the value is a positive number."""
    log, was_active = _log(observation.value), state.alarm is not None or state.unusual_since_s is not None
    linked = abs(observation.unix_s - state.last_s) <= state.gap_s  # probes may end in another order than they began
    event = first_days.judge(state, observation.unix_s, log, linked=linked)
    verdict = _step(state, observation, log, linked=linked)
    event = verdict.event or event
    # A change found by both begins and ends once.
    is_known = event in ("unusual", "recovered", "accepted") and verdict.active == was_active
    return state, verdict._replace(event=None if is_known else event)


def _step(state: Drift, observation: Observation, log: float, *, linked: bool) -> DriftVerdict:
    """Judge a sample by the baseline, and learn from it."""
    unix_s, _, load = observation
    state.last_s = unix_s
    if not linked:  # unseen evidence did not last
        state.before = state.load = state.suspected_s = None
    if load is not None or state.load is not None:
        _smooth(state, unix_s, load)
    alarm = state.alarm
    if alarm is not None and unix_s - alarm.raised_s >= state.settings.spec.accept_after:
        _relearn(state, everything=state.covers_days)
        return present_verdict(state, "accepted")
    learns = alarm is None or (not state.covers_days and unix_s - alarm.raised_s > first_days.MAX_S)
    event = _learn(state, unix_s, log, linked=linked) if state.spread is not None and learns else None
    baseline, mix = state.baseline, state.mixture
    if baseline is None or mix is None:
        return present_verdict(state)
    where = state.load_state
    _extend(state, where, unix_s)
    load = state.load or 0.0
    if where == "missing" or (where == "outside" and load > baseline.busiest):
        return _paused_verdict(state, unix_s, event)
    expected, error = baseline.expected(unix_s, load)
    doubt = state.doubt * error + state.allowance
    is_known = error < math.inf  # False if NaN
    if not is_known or state.visit is not None:
        _visit(state, baseline, unix_s, log, is_known=is_known)
    if not is_known:
        # An unknown half hour of the week may be as slow as the slowest seen, and on a workday, or in the first days, far slower: a
        # weekend is no evidence for workdays.
        expected, state.before = max(baseline.slowest, state.slowest_visit), None
        is_quiet = state.settled and is_weekend(int(week_slots(unix_s)))
        doubt = (
            (1 if is_quiet else UNSEEN_CHANGES) * math.log1p(state.settings.spec.material) * (1 - baseline.correlation)
        )
    residual = log - expected
    phi, before = baseline.correlation, state.before
    whitened = baseline.whitened(residual, None) if before is None else residual - phi * before
    state.before = residual if is_known else None
    fifth = baseline.fifth(expected, load) if baseline.cuts else 0
    reference, table = baseline.references[fifth], state.tables[fifth]
    stake = 1 / (baseline.inflations[fifth] * state.caution)
    z, floor = table[bisect_right(reference, whitened - doubt)], 0.0
    if is_known and mix.floors:
        cut, below, above = mix.floors[fifth]
        floor = (below if residual - doubt / (1 - phi) < cut else above) / state.caution
    is_comparable = is_known and where != "outside"
    if state.alarm is None or is_comparable:
        state.ring.add(unix_s, residual, fifth)
    if state.alarm is not None:
        return _update_alarm(state, mix.grow(state.slower, z, stake, floor), unix_s, is_comparable=is_comparable)
    faster = -table[bisect_right(reference, whitened + doubt)] if is_known else None
    if faster is not None and load < baseline.quietest:
        faster = 0.0  # an engine with less load than ever is not a better one
    return _judge(state, unix_s, mix.grow(state.slower, z, stake, floor), faster, event, stake)


def _visit(state: Drift, baseline: Baseline, unix_s: float, log: float, *, is_known: bool) -> None:
    """Learn a half hour of the week that the baseline does not know, except during an alarm.

    A half hour slower than all samples of the baseline stays unknown, because their spread does not apply to it.
    """
    slot, visit = int(week_slots(unix_s)), state.visit
    if visit is not None and (visit.slot != slot or state.alarm is not None):
        if state.alarm is None and visit.count >= MIN_VISIT_SHARE * SLOT_S * state.settings.rate_per_s:
            if visit.mean_log > baseline.slowest:
                state.slowest_visit = max(state.slowest_visit, visit.mean_log)
            else:
                state.baseline = baseline.with_visit(visit.slot, visit.mean_log, visit.count)
        state.visit = visit = None
    if state.alarm is None and not is_known:
        visit = state.visit = visit or Visit(slot)
        visit.count += 1
        visit.mean_log += (log - visit.mean_log) / visit.count


def _judge(
    state: Drift, unix_s: float, total: float, faster: float | None, event: Event | None, stake: float
) -> DriftVerdict:
    """Judge the evidence. total: for a slowdown; faster: normal score for an improvement (None at an unseen hour)"""
    mix, baseline = state.mixture, state.baseline
    assert mix is not None
    assert baseline is not None
    state.judged += 1
    if state.caution > 1 and unix_s - state.caution_s > CAUTION_S:
        state.caution, state.caution_s = max(1.0, state.caution / CAUTION_GROWTH), unix_s
    if total < math.sqrt(mix.threshold):
        if state.is_burst:
            event = event or "burst"
            state.slower, state.judged = [0.0] * mix.components, 0
        state.suspected_s, state.is_burst = None, False
    elif state.suspected_s is None:
        state.suspected_s = unix_s
    if total >= mix.threshold:
        dependence = min(MAX_DEPENDENCE, 1 / stake)
        if unix_s - (state.suspected_s or unix_s) >= dependence * MIN_CHANGE_S:
            state.alarm = _new_alarm(state, mix, unix_s, dependence)
            state.slower = [0.0] * mix.components
            if state.spread is not None:
                state.spread.cut()
            return present_verdict(state, "alarm" if state.covers_days else "unusual")
        state.slower = [evidence * HELD_SHARE * mix.threshold / total for evidence in state.slower]
        state.is_burst = True
    if faster is not None and _is_improved(state, mix, faster, unix_s, stake):
        _relearn(state, everything=state.settled)
        return present_verdict(state, "improved")
    is_settled = state.settled and faster is not None
    if is_settled and state.load is not None and baseline.factor == "hour":
        # Load explains more than the hour: learn a new baseline while the old one stays in use.
        learns_load = state.spread is not None and state.spread.every_s < WEEK_EVERY_S
        state.spread = state.spread if learns_load else Blocks(SPREAD_EVERY_S)
    return present_verdict(state, event) if is_settled else present_verdict(state, event)._replace(phase="provisional")


def _is_improved(state: Drift, mix: Mixture, faster: float, unix_s: float, stake: float) -> bool:
    """True if the signal is faster than the baseline, and if judged by the hour for IMPROVEMENT_S: a holiday is none."""
    d, c = mix.faster
    log = stake * (d * faster + c)
    improvement, baseline = state.improvement, state.baseline
    assert baseline is not None
    if improvement is None:
        state.faster = (state.faster + 1) * exp(log)
        if state.faster < mix.threshold:
            return False
        state.improvement, state.faster = Improvement(unix_s), 0.0
        return baseline.factor != "hour"
    d = mix.shifts[0][1]  # of the smallest that matters: less than half of it is no improvement
    improvement.against = max(0.0, improvement.against + stake * (d * d / 2 - d * faster))
    if improvement.against >= math.log(mix.threshold):
        state.improvement = None
        return False
    return unix_s - improvement.since_s >= IMPROVEMENT_S


def _log(value: float) -> float:
    if not 0 < value < math.inf:
        raise ValueError(f"a latency must be a finite number of seconds above 0, not {value!r}")
    return math.log(value)


def _smooth(state: Drift, unix_s: float, load: float | None) -> None:
    """Update the smoothed load. While the load is unknown the last value stays, at most for the time of smoothing."""
    if load is None:
        state.unloaded += 1
        if state.unloaded > LOAD_SAMPLES:
            state.load = None
        return
    if state.load is None:
        state.load, state.loads = load, 0
    if state.loads < LOAD_SAMPLES:
        state.loads += 1
    state.load += (load - state.load) / state.loads
    state.load_s, state.unloaded = unix_s, 0


def _learn(state: Drift, unix_s: float, log: float, *, linked: bool) -> Event | None:
    """Collect the sample, unless it is unusual, and learn a baseline once there are enough samples."""
    stretch, spread = state.stretch, state.spread
    assert spread is not None
    for blocks in (stretch, spread):
        if blocks is not None and state.unusual_since_s is None and state.improvement is None:
            blocks.add(unix_s, log, state.load, linked=linked)
    if spread.full:
        adopt(state, learn_baseline(spread), settled=True)
    elif stretch is not None and stretch.full:
        adopt(state, learn_baseline(stretch, thin=PROVISIONAL_THINNING), settled=False)
    else:
        return None
    return "learnt"


def _relearn(state: Drift, *, everything: bool) -> None:
    """Discard the baseline and learn again. Samples collected over days are discarded only with `everything`.

    If the load explained days, it also explains hours that the next baseline has not seen: that one's findings are more than unusual.
    """
    state.covers_days = state.covers_days and state.load_state == "within"
    state.baseline = state.mixture = None
    state.settled, state.caution = False, 1.0
    state.stretch = Blocks(0.0)
    if everything:
        state.spread = Blocks(SPREAD_EVERY_S)
    state.before = state.alarm = state.outside_since_s = None
    _reset_evidence(state)


def _reset_evidence(state: Drift) -> None:
    """Set all evidence to 0."""
    state.slower = [0.0] * (state.mixture.components if state.mixture else 0)
    state.faster, state.is_burst = 0.0, False
    state.improvement = state.visit = state.suspected_s = None
    state.judged = 0


def _new_alarm(state: Drift, mix: Mixture, unix_s: float, dependence: float) -> Alarm:
    """Create an alarm. The change began where the winning bet's log evidence, summed from there to now, is largest.

    Scores are recomputed from the residuals without the guards, which vary. This takes about 2 ms.
    """
    baseline, ring = state.baseline, state.ring
    assert baseline is not None
    won = max(range(mix.components), key=state.slower.__getitem__)
    total, best, since = 0.0, -math.inf, unix_s
    places = list(ring.latest(state.judged))
    for at, before in pairwise(places):
        whitened = baseline.whitened(ring.residuals[at], ring.residuals[before])
        fifth = ring.fifths[at] if baseline.cuts else 0
        score = state.tables[fifth][bisect_right(baseline.references[fifth], whitened - state.allowance)]
        total += mix.log(won, score) / baseline.inflations[fifth]
        if total > best:
            best, since = total, ring.times[at]
    settings = state.settings
    patience_s = max(dependence * settings.patience / settings.rate_per_s, PATIENCE * (unix_s - since))
    return Alarm(since, unix_s, min(DAY_S, patience_s))


def _update_alarm(state: Drift, total: float, unix_s: float, *, is_comparable: bool) -> DriftVerdict:
    """Update an active alarm, which ends if half of the evidence for one does not recur.

    total: evidence since it last recurred
    is_comparable: False at a load or hour that the baseline does not know: such samples end an alarm only after a day
    """
    alarm, mix = state.alarm, state.mixture
    assert alarm is not None
    assert mix is not None
    alarm.after += is_comparable
    alarm.quiet += 1 / (state.settings.rate_per_s * (alarm.patience_s if is_comparable else DAY_S))
    if total >= math.sqrt(mix.threshold):
        alarm.quiet, state.slower = 0.0, [0.0] * mix.components
    if alarm.quiet < 1:
        return present_verdict(state)
    state.alarm = None
    _reset_evidence(state)
    if unix_s - alarm.since_s < DAY_S:
        state.caution, state.caution_s = min(MAX_CAUTION, CAUTION_GROWTH * state.caution), unix_s
    return present_verdict(state, "recovered")


def present_verdict(state: Drift, event: Event | None = None) -> DriftVerdict:
    """The verdict for the present state."""
    baseline, alarm, mix = state.baseline, state.alarm, state.mixture
    phase: Phase = "learning" if baseline is None else "settled" if state.settled else "provisional"
    where = state.load_state
    if state.unusual_since_s is not None:
        usual_s, present_s = math.exp(first_days.level_of(state).usual), math.exp(median(state.latest))
        return DriftVerdict(phase, 1.0, True, "unusual", state.unusual_since_s, event, where, (usual_s, present_s))
    if mix is None:
        return DriftVerdict(phase, 0.0, event=event, load=where)
    if alarm is None:
        return DriftVerdict(phase, min(1.0, log1p(sum(state.slower)) * mix.unit), event=event, load=where)
    cause: Cause = "unusual" if not state.covers_days else "regression" if where == "within" else "unknown"
    return DriftVerdict(phase, 1.0, True, cause, alarm.since_s, event, where)


def _extend(state: Drift, where: LoadState, unix_s: float) -> None:
    """If the load stays outside the learned range, start to learn a baseline over a week; the present one stays in use."""
    if where != "outside":
        state.outside_since_s = None
    elif state.outside_since_s is None:
        state.outside_since_s = unix_s
    elif state.settled and state.spread is None and unix_s - state.outside_since_s >= EXTEND_AFTER_S:
        state.spread = Blocks(WEEK_EVERY_S)


def _paused_verdict(state: Drift, unix_s: float, event: Event | None) -> DriftVerdict:
    """Verdict on a sample that the baseline cannot judge. Learns again if the load is unknown for longer than an alarm may last."""
    state.before = None
    if unix_s - state.load_s > state.settings.spec.accept_after:
        _relearn(state, everything=True)
    return present_verdict(state, event)
