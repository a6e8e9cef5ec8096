"""State of one signal's drift detector, with its samples and verdicts."""

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from prober.config.configuration import DriftSpec
from prober.features.drift.baseline import QUANTILES, Baseline
from prober.features.drift.blocks import BLOCK_COUNT, BLOCK_SAMPLES, SPREAD_EVERY_S, Blocks
from prober.features.drift.evidence import SHIFT_MULTIPLES, Mixture, Multiples
from prober.statistics.quantiles import MIN_SAMPLES_BY_QUANTILE

Phase = Literal["learning", "provisional", "settled"]
Cause = Literal["regression", "unknown", "unusual"]
# Present load compared with the baseline's loads. missing: the baseline needs it; unlearnt: the baseline does not know it.
LoadState = Literal["within", "outside", "missing", "unlearnt", "unknown"]
UNJUDGED: dict[LoadState, str] = {
    "outside": "the load is outside what was learnt",
    "missing": "the load is not known at the moment",
}
CAUSES: dict[LoadState, str] = {
    "within": "slower at the same load",
    **{load: f"{why}, so neither cause nor size is stated" for load, why in UNJUDGED.items()},
    "unlearnt": "the load was not known when the baseline was learnt, so more load may be the cause",
    "unknown": "the load is not known, so more load may be the cause",
}
UNUSUAL = "three days are not learnt yet, so it may be usual"
Event = Literal["learnt", "alarm", "unusual", "burst", "recovered", "improved", "accepted"]

# The bound holds for a known baseline; half of the false alarms are reserved for errors of a learned baseline.
FALSE_ALARM_MARGIN = 2.0
# Mean intervals between samples, and at least seconds; after a longer gap the previous sample is not used. A pause of a busy machine
# is a second, and must not end a slowdown that is seen 60 times a second.
MAX_GAP_INTERVALS, MIN_GAP_S = 20, 10.0
DOUBT_ERRORS = 1.0  # standard errors of the model subtracted from each sample: a rare load is weak evidence
LOAD_SAMPLES = 60  # samples over which the load is smoothed: noise in a regressor hides its effect
CHANCE_SDS = 2.0  # of independent arrivals: allowed excess of the smoothed load over the learned loads
# An alarm ends if half of the evidence does not recur for three times as long as it took, at least 240 independent samples.
PATIENCE, MIN_PATIENCE_SAMPLES = 3.0, 240
RING_SAMPLES = MIN_SAMPLES_BY_QUANTILE[0.99]  # enough for every reported quantile


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one signal. Slowdowns below half of `spec.material` raise no alarm.

    rate_per_s: mean rate of samples
    patience: independent samples without half of the evidence that end an alarm, or more if it took longer
    multiples: shifts to bet on
    """

    rate_per_s: float
    spec: DriftSpec = DriftSpec()
    patience: int = MIN_PATIENCE_SAMPLES
    multiples: Multiples = SHIFT_MULTIPLES

    @property
    def threshold(self) -> float:
        """Evidence that raises an alarm, also a lower bound of the mean number of samples between false alarms."""
        return FALSE_ALARM_MARGIN * self.rate_per_s / self.spec.false_alarms


class Observation(NamedTuple):
    """A sample: time, latency in seconds, and load of the engine (arrivals per second) if known."""

    unix_s: float
    value: float
    load: float | None = None


class DriftVerdict(NamedTuple):
    """Verdict of the detector after a sample."""

    phase: Phase  # learning: no baseline yet; provisional: coarse, error up to `material`
    evidence: float  # log scale: 0 none, 1 enough for an alarm; stays 1 during an alarm
    active: bool = False
    cause: Cause | None = None  # regression: slower at a learned load; unusual: slower than in the hours learned so far
    since_unix_s: float | None = None
    event: Event | None = None
    load: LoadState = "unknown"
    medians_s: tuple[float, float] | None = None  # usual and present one, in an unusual time of the first days

    @property
    def is_drift(self) -> bool:
        """True if the latency has drifted; an unusual latency may turn out to be usual."""
        return self.active and self.cause != "unusual"

    @property
    def why(self) -> str:
        """Text on the load during an active drift, or on why there is no verdict; else ""."""
        if self.active and self.cause == "unusual":
            usual, present = (f"{1e3 * median_s:.3g} ms" for median_s in self.medians_s) if self.medians_s else ("", "")
            return f"{present} in the median, {usual} before; {UNUSUAL}" if present else UNUSUAL
        if self.active:
            return CAUSES[self.load]
        return UNJUDGED.get(self.load, "") if self.phase != "learning" else ""


@dataclass(frozen=True, slots=True)
class Shift:
    """Quantile since the alarm ÷ the baseline's at equal load, with 95% confidence interval. count: samples since the alarm"""

    q: float
    ratio: float
    lower: float
    upper: float
    count: int


@dataclass(frozen=True, slots=True)
class DriftStatus:
    """Present verdict on a latency. shifts: only while the latency differs from its baseline"""

    workload: str
    signal: str
    verdict: DriftVerdict
    shifts: tuple[Shift, ...] = ()


@dataclass(slots=True)
class Ring:
    """The latest samples: times, residuals, and fifths of the factor if each has its own reference.

    During an alarm, only samples at a learned load or hour are added.
    """

    count: int = 0
    times: "array[float]" = field(default_factory=lambda: array("d", [0]) * RING_SAMPLES)
    residuals: "array[float]" = field(default_factory=lambda: array("f", [0]) * RING_SAMPLES)
    fifths: "array[int]" = field(default_factory=lambda: array("B"))

    def add(self, unix_s: float, residual: float, fifth: int) -> None:
        """Store a sample."""
        at = self.count % len(self.times)
        self.times[at], self.residuals[at] = unix_s, residual
        if self.fifths:
            self.fifths[at] = fifth
        self.count += 1

    def latest(self, count: int) -> Iterable[int]:
        """Indices of at most `count` latest stored samples, newest first."""
        size = len(self.times)
        return ((self.count - 1 - i) % size for i in range(min(count, self.count, size)))


@dataclass(slots=True)
class Alarm:
    """A detected change.

    since_s, raised_s: estimated start of the change, and time of the alarm
    after: samples since the alarm at a learned load or hour; earlier ones raised the alarm and are biased
    patience_s: time without half of the evidence for an alarm, collected anew, that ends this one; quiet: share of it that has passed
    """

    since_s: float
    raised_s: float
    patience_s: float
    after: int = 0
    quiet: float = 0.0


@dataclass(slots=True)
class Improvement:
    """An improvement, which becomes the baseline if it lasts.

    since_s: when the evidence reached the threshold
    against: log evidence that it is over
    """

    since_s: float
    against: float = 0.0


@dataclass(slots=True)
class Visit:
    """Samples of the present half hour of the week, unknown to the baseline."""

    slot: int
    count: int = 0
    mean_log: float = 0.0


@dataclass(slots=True)
class Drift:
    """State of one signal, changed in place by `step`, written and read by `serialization`.

    gap_s: longest time between samples that count as neighbours
    stretch: blocks for a provisional baseline; spread: blocks for a baseline over days
    mixture, tables, doubt: derived from baseline and settings
    allowance: possible error of a whitened residual of a provisional baseline; derived
    covers_days: the baseline covers days, or follows one whose load explained days; if it covers only hours, findings are just unusual
    slower: evidence × weight of each bet; faster: evidence of an improvement
    judged: number of samples since the evidence was 0
    before: residual of the previous sample; None across a gap
    load: smoothed; None once unknown for longer than the smoothing
    load_s: time of the last known load; unloaded: number of samples since then
    loads: number of samples in the smoothed load
    caution: further inflation of the scores, since `caution_s`
    outside_since_s: when the load left the learned range
    suspected_s: since when there is half of the evidence for an alarm, on a log scale
    is_burst: there was enough evidence since then, but the slowdown has not yet lasted long enough
    boot, offset_s: boot id of the machine, and wall clock − monotonic clock, at the last sample
    medians, latest, passed, unusual_since_s: for `first_days`: logs of medians and latest samples, number of all samples, and since
    when they are unusual
    slowest_visit: mean log of the slowest half hour not learned because it is slower than all samples of the baseline
    """

    settings: Settings
    gap_s: float
    stretch: Blocks | None = None
    spread: Blocks | None = None
    baseline: Baseline | None = None
    mixture: Mixture | None = None
    tables: "tuple[array[float], ...]" = ()
    doubt: float = DOUBT_ERRORS
    allowance: float = 0.0
    settled: bool = False
    covers_days: bool = False
    slower: list[float] = field(default_factory=list)
    faster: float = 0.0
    judged: int = 0
    ring: Ring = field(default_factory=Ring)
    last_s: float = -math.inf
    before: float | None = None
    load: float | None = None
    load_s: float = -math.inf
    unloaded: int = 0
    loads: int = 0
    caution: float = 1.0
    caution_s: float = -math.inf
    alarm: Alarm | None = None
    improvement: Improvement | None = None
    visit: Visit | None = None
    outside_since_s: float | None = None
    suspected_s: float | None = None
    is_burst: bool = False
    boot: str = ""
    offset_s: float = 0.0
    slowest_visit: float = -math.inf
    medians: list[float] = field(default_factory=list)
    latest: list[float] = field(default_factory=list)
    passed: int = 0
    unusual_since_s: float | None = None

    @property
    def load_state(self) -> LoadState:
        """Position of the smoothed load relative to the learned loads."""
        if self.load is None:
            return "missing" if self.baseline is not None and self.baseline.factor == "load" else "unknown"
        if self.baseline is None or math.isinf(self.baseline.busiest):
            return "unlearnt"
        beyond = max(self.load - self.baseline.busiest, self.baseline.quietest - self.load)
        if beyond <= 0:
            return "within"
        smoothed_s = 2 * LOAD_SAMPLES / self.settings.rate_per_s
        return "within" if beyond <= CHANCE_SDS * math.sqrt(max(0.0, self.load) / smoothed_s) else "outside"


def new_state(settings: Settings) -> Drift:
    """State of a signal without samples."""
    gap_s = max(MIN_GAP_S, MAX_GAP_INTERVALS / settings.rate_per_s)
    return Drift(settings, gap_s, stretch=Blocks(0.0), spread=Blocks(SPREAD_EVERY_S))


NORMAL_95 = 1.96


def shifts(state: Drift) -> list[Shift]:
    """Shifts of the quantiles since the alarm; empty without an alarm, without enough samples, or while nothing is judged.

    Only samples since the alarm count, at most the latest RING_SAMPLES: earlier ones raised it because they were slow, and would
    overstate the shift. Ratios are to the baseline's quantiles at equal load. Confidence intervals are order statistics,
    widened for the correlation of the samples, for the finite baseline, and for the error and the wander of its level.
    """
    alarm, baseline = state.alarm, state.baseline
    if alarm is None or baseline is None or state.load_state in UNJUDGED:
        return []
    places = list(state.ring.latest(alarm.after))
    residuals = [state.ring.residuals[at] for at in places]
    fifths = [state.ring.fifths[at] for at in places] if baseline.cuts else [0] * len(places)
    # Errors of the expected log: the model's at the present load or hour, and the level's wander.
    of_model = baseline.expected(state.last_s, state.load or 0.0)[1] / (1 - baseline.correlation)
    error = math.hypot(of_model, baseline.wander) if of_model < math.inf else baseline.wander
    sizes = []
    for index, q in enumerate(QUANTILES):
        if len(places) >= MIN_SAMPLES_BY_QUANTILE[q]:
            levels = [of_fifth[index] for of_fifth in baseline.quantiles]
            moved = [residual - levels[fifth] for residual, fifth in zip(residuals, fifths, strict=True)]
            size = _shift(moved, q, baseline, error)
            if size is not None:
                sizes.append(size)
    return sizes


def _shift(moved: Sequence[float], q: float, baseline: Baseline, error: float) -> Shift | None:
    """Shift of one quantile; None for too few samples. moved: logs of samples minus the baseline's quantile, newest first"""
    ordered, n = sorted(moved), len(moved)
    estimate = ordered[math.ceil(q * n) - 1]
    usual = (1 + baseline.correlation) / (1 - baseline.correlation) * max(baseline.inflations)
    dependence = max(usual, _dependence([value <= estimate for value in moved], q))
    learnt = BLOCK_COUNT * BLOCK_SAMPLES / len(baseline.quantiles)
    spread = NORMAL_95 * math.sqrt(q * (1 - q) * n * (dependence + usual * n / learnt))
    low, high = math.floor(n * q - spread), math.ceil(n * q + spread) + 1
    if low < 1 or high > n:
        return None
    below = math.hypot(estimate - ordered[low - 1], NORMAL_95 * error)
    above = math.hypot(ordered[high - 1] - estimate, NORMAL_95 * error)
    return Shift(q, math.exp(estimate), math.exp(estimate - below), math.exp(estimate + above), n)


def _dependence(is_below: Sequence[bool], q: float) -> float:
    """Variance of the share of samples below a quantile ÷ that of independent samples, from batch means."""
    size = max(2, math.isqrt(len(is_below)))
    batches = [sum(is_below[i : i + size]) for i in range(0, len(is_below) - size + 1, size)]
    return sum((count - size * q) ** 2 for count in batches) / (len(batches) * size * q * (1 - q))
