"""Effect of another load during a part of a stage: TTFT during that load compared with before, and the time to recover afterwards.

Recovery. Each request due after the end of the load is good or bad by the TTFT objective. The load still slowed down the requests
up to the most likely change from "more bad than good" to "bad as often as the objective allows" (the largest sum
of log-likelihood ratios). The sequential test must prove on the rest that the objective is met again; otherwise the time to recover
has only a lower bound. Requests after the change count as independent.

Ratio. TTFTs close in time share a queue, so intervals are computed from clusters of `BLOCK_S`. A failed request has no TTFT
and counts as slower than all others. The confidence interval of a ratio combines the 95% intervals of both quantiles, so its confidence
is 90% or more.

Contrast: a row of a matrix compared with an earlier one that was sent alike. Throughput is answers per second without both
ends of a row: from the end of the first answer to the last due time. A block of `BLOCK_S` counts as one observation,
with the interval of a ratio of two means (delta method, Student's t).
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from prober.measure.objective import Slo, count_events
from prober.measure.outcome import ANSWERED, BAD, NEUTRAL
from prober.measure.result import ProbeResult
from prober.measure.timeline import format_duration
from prober.statistics.quantiles import Quantile, clustered_quantiles, percentile_name, student_t_975
from prober.statistics.sequential_test import Evidence, Observations, evidence

BLOCK_S = 5.0
QS = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A latency quantile of some requests ÷ that of others, such as during a load ÷ before it, with a confidence interval."""

    q: float
    estimate: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Recovery:
    """Time from the end of the load until TTFT met its objective again.

    evidence: holds: the objective is met again, from lower_s to upper_s after the load. fails: it was missed before the load, so
    nothing can recover. undecided: neither is proved; if lower_s is known, it was not met before then
    events, bad: requests that decided: those since the recovery, else all after the load; for "fails" those before the load
    """

    evidence: Evidence
    events: int
    bad: int
    lower_s: float | None = None
    upper_s: float | None = None


@dataclass(frozen=True, slots=True)
class Disturbance:
    """The effect of another row's load on a stage.

    name: name of that row; begin_s, end_s: when it was sent, from the begin of the stage; ended: why it ended early, else ""
    slo: name of the TTFT objective; events, bad: requests of the stage during the load, and the bad ones
    samples: numbers of requests (before, during) with a TTFT, or failed
    ratios: TTFT during ÷ before, for quantiles with enough samples on both sides
    """

    name: str
    begin_s: float
    end_s: float
    ended: str
    slo: str
    events: int
    bad: int
    samples: tuple[int, int]
    ratios: tuple[Ratio, ...]
    recovery: Recovery

    def text(self) -> str:
        """The effect as sentences, the last without its full stop."""
        early = f", ended early and its requests in flight cut: {self.ended}" if self.ended else ""
        span = f"{self.name} was sent for {self.end_s - self.begin_s:.3g} s{early}"
        before, beside = self.samples
        ratios = f"TTFT beside it relative to that before: {ratios_text(self.ratios)}"
        if not self.ratios:
            few = f"too few requests ({beside:,} and {before:,}), too few blocks of {BLOCK_S:g} s, or too many failed"
            ratios = f"no ratio of TTFT beside it to that before: {few}"
        return f"{span}. Beside it {self.bad:,} of {self.events:,} bad by {self.slo}; {ratios}. {self._recovery()}"

    def _recovery(self) -> str:
        recovery = self.recovery
        counts = f"{recovery.bad:,} of {recovery.events:,} bad"
        least, most = format_duration(recovery.lower_s), format_duration(recovery.upper_s)
        match recovery.evidence:
            case "holds":
                span = f"{least} to {most}" if recovery.lower_s else f"at most {most}"
                return f"Recovery: {span} after its end ({counts} since)"
            case "fails":
                return f"Recovery: none to measure, {self.slo} failed before it already ({counts})"
            case "undecided" if recovery.lower_s is not None:
                return f"Recovery: at least {least} after its end, undecided within the time watched ({counts})"
            case "undecided":
                return f"Recovery: undecided ({counts} after its end)"


def disturbance_of(
    slo: Slo, probes: Sequence[ProbeResult], *, name: str, ended: str, stage_begin_ns: int, begin_ns: int, end_ns: int
) -> Disturbance:
    """Measure the effect of another load on the requests of a stage.

    slo: objective of TTFT
    begin_ns, end_ns: when the other load was sent, on the clock of the timelines
    """
    before = [probe for probe in probes if probe.timeline.intended_ns < begin_ns]
    beside = [probe for probe in probes if begin_ns <= probe.timeline.intended_ns < end_ns]
    after = [probe for probe in probes if probe.timeline.intended_ns >= end_ns]
    events = [bad for _, bad in _events(slo, beside, end_ns)]
    return Disturbance(
        name,
        (begin_ns - stage_begin_ns) / 1e9,
        (end_ns - stage_begin_ns) / 1e9,
        ended,
        slo.name,
        len(events),
        sum(events),
        (sum(map(len, ttft_blocks(before))), sum(map(len, ttft_blocks(beside)))),
        ttft_ratios(before, beside),
        _recovery(slo, _events(slo, before, end_ns), _events(slo, after, end_ns)),
    )


def _events(slo: Slo, probes: Sequence[ProbeResult], origin_ns: int) -> list[tuple[float, bool]]:
    """(due time in seconds since the origin, is bad) of each event of the SLO, by due time."""
    counted = [((probe.timeline.intended_ns - origin_ns) / 1e9, count_events(slo, probe)) for probe in probes]
    return sorted((due_s, bad > 0) for due_s, (events, bad) in counted if events)


def _recovery(slo: Slo, before: Sequence[tuple[float, bool]], after: Sequence[tuple[float, bool]]) -> Recovery:
    budget = float(slo.error_budget_ratio)
    earlier = [bad for _, bad in before]
    if evidence(Observations(earlier), budget) == "fails":
        return Recovery("fails", len(earlier), sum(earlier))
    slowed = _slowed([bad for _, bad in after], budget)
    since = [bad for _, bad in after[slowed:]]
    lower_s = after[slowed - 1][0] if slowed else 0.0
    if evidence(Observations(since), budget) == "holds":
        return Recovery("holds", len(since), sum(since), lower_s, after[slowed][0])
    bad_after = sum(bad for _, bad in after)
    return Recovery("undecided", len(after), bad_after, lower_s if slowed else None)


def _slowed(bad: Sequence[bool], budget: float) -> int:
    """Number of requests before the most likely change from mostly bad to as rarely bad as `budget`."""
    slow = (1 + budget) / 2
    gain, loss = math.log(slow / budget), math.log((1 - slow) / (1 - budget))
    place, best, total = 0, 0.0, 0.0
    for count, is_bad in enumerate(bad, 1):
        total += gain if is_bad else loss
        if total > best:
            place, best = count, total
    return place


def ttft_ratios(before: Sequence[ProbeResult], beside: Sequence[ProbeResult]) -> tuple[Ratio, ...]:
    """Quantiles of TTFT of `beside` ÷ those of `before`, if both have enough samples."""
    pairs = zip(
        clustered_quantiles(ttft_blocks(before), QS), clustered_quantiles(ttft_blocks(beside), QS), strict=False
    )
    return tuple(ratio for first, second in pairs if (ratio := _ratio(first, second)) is not None)


def ratios_text(ratios: Iterable[Ratio]) -> str:
    """The ratios with their confidence intervals, as a phrase."""
    return ", ".join(f"{percentile_name(r.q)} {r.estimate:.3g} times ({r.lower:.3g} to {r.upper:.3g})" for r in ratios)


def _ratio(first: Quantile, second: Quantile) -> Ratio | None:
    if not (first.has_enough_samples and second.has_enough_samples and first.lower and first.upper and second.lower):
        return None
    upper = second.upper
    if upper is None or not math.isfinite(max(first.upper, upper)):
        return None
    return Ratio(second.q, second.estimate / first.estimate, second.lower / first.upper, upper / first.lower)


def ttft_blocks(probes: Sequence[ProbeResult]) -> list[list[float]]:
    """TTFTs in seconds, grouped by blocks of `BLOCK_S`; infinite for failed requests."""
    blocks: dict[int, list[float]] = {}
    for probe in probes:
        ttft_s = math.inf if probe.outcome in BAD else probe.timeline.ttft_s
        if ttft_s is not None and not (probe.outcome in NEUTRAL or probe.warm_up or probe.cached):
            blocks.setdefault(int(probe.timeline.intended_ns / 1e9 // BLOCK_S), []).append(ttft_s)
    return list(blocks.values())


MIN_BLOCKS = 10


@dataclass(frozen=True, slots=True)
class ThroughputRatio:
    """Answers per second of one row ÷ those of another, with a 95% confidence interval."""

    estimate: float
    lower: float
    upper: float


@dataclass(frozen=True, slots=True)
class Contrast:
    """A row of a matrix compared with an earlier row.

    name: name of the earlier row; the machine may have changed since
    ttft: ratios for quantiles with enough samples in both rows
    samples: requests (this row, earlier row) with a TTFT, or failed; blocks: full blocks for their throughput
    """

    name: str
    ttft: tuple[Ratio, ...]
    throughput: ThroughputRatio | None
    samples: tuple[int, int]
    blocks: tuple[int, int]

    def text(self) -> str:
        """The ratios as a sentence without its full stop."""
        row, other = self.samples
        ttft = f"TTFT {ratios_text(self.ttft)}" if self.ttft else f"no ratio of TTFT ({row:,} and {other:,} requests)"
        if self.throughput is not None:
            ratio = self.throughput
            answers = f"answers per second {ratio.estimate:.3g} times ({ratio.lower:.3g} to {ratio.upper:.3g})"
        else:
            row, other = self.blocks
            counts = f"{row} and {other} blocks of {BLOCK_S:g} s, {MIN_BLOCKS} of both are needed"
            answers = f"none of answers per second ({counts})"
        return f"Relative to {self.name}, sent before it: {ttft}, {answers}"


def contrast_of(probes: Sequence[ProbeResult], reference: Sequence[ProbeResult], *, name: str) -> Contrast:
    """Compare the row of `probes` with the row `name`, whose requests are `reference`."""
    row, other = _answers(probes), _answers(reference)
    return Contrast(
        name,
        ttft_ratios(reference, probes),
        _throughput(row, other),
        (sum(map(len, ttft_blocks(probes))), sum(map(len, ttft_blocks(reference)))),
        (len(row), len(other)),
    )


def _answers(probes: Sequence[ProbeResult]) -> list[int]:
    """Number of answers in each full block of `BLOCK_S`."""
    ends_ns = [
        probe.timeline.end_ns
        for probe in probes
        if probe.outcome in ANSWERED and not probe.warm_up and probe.timeline.end_ns is not None
    ]
    if not ends_ns:
        return []
    begin_ns, last_ns = min(ends_ns), max(probe.timeline.intended_ns for probe in probes)
    counts = Counter(int((end_ns - begin_ns) / 1e9 // BLOCK_S) for end_ns in ends_ns)
    return [counts[block] for block in range(max(0, int((last_ns - begin_ns) / 1e9 // BLOCK_S)))]


def _throughput(row: Sequence[int], other: Sequence[int]) -> ThroughputRatio | None:
    if min(len(row), len(other)) < MIN_BLOCKS or not (any(row) and any(other)):
        return None
    relative = sum(variance(counts) / len(counts) / fmean(counts) ** 2 for counts in (row, other))
    estimate = fmean(row) / fmean(other)
    factor = math.exp(student_t_975(min(len(row), len(other)) - 1) * math.sqrt(relative))
    return ThroughputRatio(estimate, estimate / factor, estimate * factor)
