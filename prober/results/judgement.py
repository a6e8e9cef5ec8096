"""Judges whether a share of bad events is within its budget, from results in the order of their due times.

Gate, matrix and the search for users judge by a `Question`, each with its own words for "holds", "fails" and "undecided".

Bad results come in bursts, so one observation is the mean of a block of time, however many requests it has: minutes without a bad
result are minutes of evidence, at any rate. A block is half as long as the expected burst; `bench/deciding.py` measures the errors
of this choice.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import fmean

from prober.measure.objective import Slo, count_events, max_events_per_probe, mean_events_per_probe
from prober.measure.result import ProbeResult
from prober.statistics.paired_test import independent_means, student_p_value
from prober.statistics.sequential_test import (
    Evidence,
    Observations,
    confidence_bounds,
    evidence,
    log_evidence_above,
    log_evidence_below,
    min_observations,
)

# Events; bad events counted to prove that they are few, and those counted to prove that they are many.
Judged = tuple[int, float, float]
BURST_S = 15.0
SEQUENTIAL_SHARE = 0.2  # of an error, where the results of a fixed length are tested at their end too
BLOCKS_PER_BURST = 2  # with bursts at twice the budget, at most a tenth of the gates says ready: `bench/deciding.py`
MIN_LOG_EVIDENCE = 0.5  # with less evidence, further requests are not estimated


def block_s(burst_s: float) -> float:
    """Length of a block in s. burst_s: longest expected burst of bad results; 0: results are independent, each is a block"""
    return burst_s / BLOCKS_PER_BURST


@dataclass(frozen=True, slots=True)
class Finding:
    """Evidence on one question.

    budget: share of events that may be bad
    requests, events, bad: counts so far; blocks: number of completed blocks
    lower, upper: confidence bounds of the share, with the gate's error
    error: largest probability that the evidence is wrong; None while undecided
    more: estimated number of further requests until a decision
    """

    name: str
    evidence: Evidence
    budget: float
    requests: int
    blocks: int
    events: int
    bad: int
    lower: float
    upper: float
    error: float | None
    more: int | None

    def text(self, name: str = "") -> str:
        """Bad events, their share and the allowed share; while undecided, also bounds of the true share. name: replaces its own"""
        name = name or self.name
        if not self.events:
            return f"{name}: nothing to judge"
        share = f"{100 * self.bad / self.events:.3g}%, allowed {100 * self.budget:.3g}%"
        text = f"{name}: {self.bad:,} of {self.events:,} bad ({share})"
        if self.evidence != "undecided":
            return text
        more = f", some {self.more:,} more requests may show it" if self.more else ""
        return f"{text}, in truth {100 * self.lower:.3g}% to {100 * self.upper:.3g}%{more}"


def together(evidence: Iterable[Evidence]) -> Evidence:
    """Combine evidence on several questions: "fails" if one fails, "holds" if all hold."""
    shown = set(evidence)
    return "fails" if "fails" in shown else "undecided" if "undecided" in shown else "holds"


def observation(bad: float, events: int, budget: float, most: int) -> float:
    """Test value of a result: budget + (bad − budget · events) ÷ most. most: largest number of events of one result

    It is between 0 and 1, and its mean exceeds the budget exactly if the ratio of the sums does, even if the gaps of an answer
    are dependent.
    """
    return budget + (bad - budget * events) / max(most, events)


class Question:
    """A question: is a share of bad events within its budget? Collects the evidence.

    most, mean: largest and mean number of events of one result
    share: share of all results that it judges
    """

    def __init__(
        self,
        name: str,
        budget: float,
        judge: Callable[[ProbeResult | None], Judged],
        most: int = 1,
        mean: float = 1.0,
        share: float = 1.0,
    ) -> None:
        self.name, self.budget, self.share = name, budget, share
        self.events, self.bad = 0, 0.0
        self._judge, self._max_events, self._mean_events, self._requests = judge, most, mean, 0
        self._block: list[tuple[float, float]] = []  # values in the open block: for holds, for fails
        self._for_holds, self._for_fails = Observations(), Observations()
        self._series: list[float] = []  # observations for fails, in order

    def values(self, result: ProbeResult | None) -> tuple[float, float] | None:
        """Count a result and return its values for "holds" and for "fails"; None without an event.

        result: None: the engine is loading or shutting down
        """
        events, bad, surely_bad = self._judge(result)
        if not events:
            return None
        self._requests += 1
        self.events, self.bad = self.events + events, self.bad + bad
        return (
            observation(bad, events, self.budget, self._max_events),
            observation(surely_bad, events, self.budget, self._max_events),
        )

    def take(self, result: ProbeResult | None) -> None:
        """Add the next result to the open block; None: the engine is loading or shutting down."""
        if (values := self.values(result)) is not None:
            self._block.append(values)

    @property
    def is_over_budget(self) -> bool:
        """True if the observed share of bad events exceeds the budget, significantly or not."""
        return self.bad > self.budget * self.events

    def close_block(self) -> None:
        """End the open block: its mean is the next observation, unless it has no events."""
        if self._block:
            for observations, values in zip(
                (self._for_holds, self._for_fails), zip(*self._block, strict=True), strict=True
            ):
                observations.add(fmean(values))
            self._series.append(fmean(value for _, value in self._block))
            self._block.clear()

    def finding(self, holds_error: float, fails_error: float, *, at_end: bool = False) -> Finding:
        """The finding so far. holds_error, fails_error: allowed probability that the claim "holds" or "fails" is wrong

        at_end: these are all results of a number or time fixed beforehand, which a stronger test may judge, once
        """
        shown = self.evidence(holds_error, SEQUENTIAL_SHARE * fails_error if at_end else fails_error)
        error = self.error(shown)
        if shown == "undecided" and at_end and self._fails_at_end((1 - SEQUENTIAL_SHARE) * fails_error):
            shown, error = "fails", fails_error
        lower, upper = confidence_bounds(self._for_holds, holds_error)
        return Finding(
            self.name,
            shown,
            self.budget,
            self._requests,
            round(self._for_holds.count),
            self.events,
            round(self.bad),
            self._event_share(lower),
            self._event_share(upper),
            None if shown == "undecided" else error,
            self._more(holds_error, fails_error) if shown == "undecided" else None,
        )

    def _fails_at_end(self, error: float) -> bool:
        """Whether the mean of all blocks is above the budget, by Student's t for batches of blocks that are independent.

        Means of few bad results have a long upper tail, so that the test errs less often than it says.
        """
        batches = [value - self.budget for value in independent_means(self._series, BLOCKS_PER_BURST)]
        return fmean(batches or [0.0]) > 0 and student_p_value(batches) <= 2 * error

    def evidence(self, holds_error: float, fails_error: float) -> Evidence:
        """The evidence so far, without the expensive confidence interval."""
        observed, surely_bad = self._for_holds, self._for_fails
        return evidence(observed, self.budget, surely_bad=surely_bad, holds_error=holds_error, fails_error=fails_error)

    def error(self, claim: Evidence) -> float:
        """Largest probability that the claim "holds" or "fails" is wrong, given the evidence so far."""
        return math.exp(-self.log_evidence(claim))

    def least(self, error: float, claim: Evidence = "holds", share: float = 0.0) -> int:
        """Number of observations that prove a claim if all events are bad in `share` of them, and good in the others."""
        weight = self._mean_events / self._max_events
        good, bad = self.budget * (1 - weight), self.budget + (1 - self.budget) * weight
        pattern = Observations({good: 1 - share, bad: share})
        return min_observations(
            self.budget, error, pattern, log_evidence_above if claim == "fails" else log_evidence_below
        )

    def requests_of(self, blocks: int, per_block: float) -> float:
        """Mean number of requests until `blocks` blocks contain a judged one. per_block: mean requests per block; 0: one each"""
        return blocks * (per_block / -math.expm1(-per_block * self.share) if per_block else 1.0 / self.share)

    def log_evidence(self, claim: Evidence) -> float:
        """ln(evidence) for a claim. The claim is wrong with probability exp(−ln(evidence)) at most."""
        if claim == "fails":
            return log_evidence_above(self._for_fails, self.budget)
        return log_evidence_below(self._for_holds, self.budget)

    def _event_share(self, mean: float) -> float:
        """Share of bad events that corresponds to a mean of the observations."""
        weight = self.events / self._max_events / self._requests if self._requests else 1.0
        return min(1.0, max(0.0, self.budget + (mean - self.budget) / weight))

    def _more(self, holds_error: float, fails_error: float) -> int | None:
        """Further requests until "holds" or "fails" is decided if the evidence keeps growing as now; None without growth."""
        claims = ((self.log_evidence("holds"), holds_error), (self.log_evidence("fails"), fails_error))
        counts = [
            self._requests * (-math.log(error) / log_evidence - 1)
            for log_evidence, error in claims
            if log_evidence > MIN_LOG_EVIDENCE
        ]
        return max(1, math.ceil(min(counts))) if counts else None


def slo_question(
    slo: Slo, max_tokens: int, mean_tokens: float, workload: str | None = None, share: float = 1.0
) -> Question:
    """The question whether an SLO's share of bad events is within its budget.

    max_tokens, mean_tokens: largest and mean number of output tokens
    workload: judge only this workload's results, which are `share` of all; None: judge all
    """

    def judge(result: ProbeResult | None) -> Judged:
        is_judged = result is not None and workload in (None, result.workload)
        events, bad = count_events(slo, result) if result is not None and is_judged else (0, 0)
        return events, bad, bad

    most = max_events_per_probe(slo, max_tokens)
    name = slo.name if workload is None else f"{slo.name} of {workload}"
    mean = min(mean_events_per_probe(slo, mean_tokens), most)
    return Question(name, float(slo.error_budget_ratio), judge, most, mean, share)


class Judgement:
    """Judges questions by the results of one target, in the order of their due times and in blocks of equal length.

    The first block begins with the first result. Sorted by answer, slow requests would come too late to count.
    """

    def __init__(self, questions: Iterable[Question], burst_s: float) -> None:
        self.questions, self._block_s = tuple(questions), block_s(burst_s)
        self._first_s, self._end_s = math.inf, -math.inf

    def take(self, result: ProbeResult | None, at_s: float) -> bool:
        """Add the next result, due at `at_s`; None: the engine loads or shuts down. Returns True if it closed a block."""
        if is_first := at_s >= self._end_s:
            self.close_block()
            self._first_s = min(at_s, self._first_s)
            self._end_s = at_s + self._block_s - math.fmod(at_s - self._first_s, self._block_s or 1.0)
        for question in self.questions:
            question.take(result)
        if not self._block_s:
            self.close_block()
        return is_first

    def close_block(self) -> None:
        """Close the open block, whose mean is an observation for each question."""
        for question in self.questions:
            question.close_block()
