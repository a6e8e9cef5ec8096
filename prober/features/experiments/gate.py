"""Readiness decision: takes results in due order, and may return a verdict after each block of them.

The gate tests several questions at once: whether the target answers; for each SLO, whether its share of bad events is within the
budget; and with a baseline, whether a latency is slower by more than what is material. Each question is a sequential test
(`statistics.sequential_test`), so the gate ends as soon as the evidence decides.

Bad results come in bursts, so one observation of a test is the mean of a block of time, however many requests it has: minutes without a
bad result are minutes of evidence, at any rate. The errors below are bounds if the expected share of bad events of every block, given
the blocks before it, is on one side of the budget. A block is half of the burst that is expected: `bench/deciding.py` measures what
passes then.

ready: every question holds, each with an error of at most `error`, which also bounds the error of "ready"
degraded: a question fails, with an error of `error` shared among all questions, and nothing says that too many requests fail
not_ready: more than the tolerated share fails, with the same error: failures of every kind, and "loading" or "shutting down";
    or nothing listens at the address
not_enough_data: the requests are used up without a decision
not_judged: too many requests were refused (`results.refused_requests`), with an error of at most `error`, or when the requests are used
    up. While too many are refused, nothing else is decided
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from itertools import count
from statistics import fmean
from typing import Literal

from prober.measure.objective import JudgedStream, Slo, count_events, max_events_per_probe, mean_events_per_probe
from prober.measure.outcome import ANSWERED, BAD, Outcome
from prober.measure.result import ProbeResult
from prober.results.cost import CostFinding
from prober.results.refused_requests import MAX_REFUSED_RATIO, NOT_COUNTED, RefusedRequests, refused_requests
from prober.results.result import Decision, RequestRow
from prober.statistics.quantiles import percentile_name, quantiles
from prober.statistics.sequential_test import (
    ERROR,
    Evidence,
    Observations,
    confidence_bounds,
    evidence,
    log_evidence_above,
    log_evidence_below,
    min_observations,
)

State = Literal["ready", "degraded", "not_ready", "not_enough_data", "not_judged"]
Latency = Literal["ttft", "tpot"]
# Events; bad events counted when showing that they are few, and when showing that they are many.
Judged = tuple[int, float, float]
ANSWERS = "answers"
COMPARED: tuple[tuple[Latency, float], ...] = (("ttft", 0.5), ("ttft", 0.9), ("tpot", 0.5))
BURST_S = 15.0
BLOCKS_PER_BURST = 2  # at twice the budget, in bursts, at most a tenth of the gates say ready: `bench/deciding.py`
# Requests that a gate sends at most by default: a multiple of the fewest that show "ready", within an hour, and 1,000 at least.
MOST_PER_LEAST, MOST_S, MOST_AT_LEAST = 3, 3_600.0, 1_000
MIN_LOG_EVIDENCE = 0.5  # below it, the evidence gives no estimate of further requests


@dataclass(frozen=True, slots=True)
class Reference:
    """Limits of a latency quantile from a baseline. The target is slower if more than 1 − q of its requests are above them.

    sure_s: the lower end of the baseline's confidence interval plus the material change; requests below it are surely not slower
    slower_s: the same for the upper end; requests above it surely are
    """

    latency: Latency
    q: float
    sure_s: float
    slower_s: float

    @property
    def name(self) -> str:
        """Name of the question, such as `ttft p50 of baseline`."""
        return f"{self.latency} {percentile_name(self.q)} of baseline"


@dataclass(frozen=True, slots=True)
class Finding:
    """Evidence on one question.

    budget: share of events that may be bad
    requests, events, bad: numbers of requests, events and bad events so far; blocks: number of completed blocks
    lower, upper: confidence bounds of the share, at the gate's error
    error: largest probability that the evidence is wrong; None while undecided
    more: estimate of further requests until a decision
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


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Verdict of the gate.

    requests: sent so far
    not_counted: of them, not sent by the prober, or cancelled
    error: largest probability that the state is wrong; None for not_enough_data and not_judged, and if nothing listens
    refused: number and share of refused requests
    """

    state: State
    why: str
    requests: int
    not_counted: int
    error: float | None
    findings: tuple[Finding, ...]
    refused: RefusedRequests = RefusedRequests()


def observed(bad: float, events: int, budget: float, most: int) -> float:
    """The value of a result for the test, budget + (bad − budget · events) ÷ most. most: largest number of events of one result

    It is between 0 and 1, and its mean is above the budget where the ratio of the sums is. So the gaps of one answer need not be
    independent.
    """
    return budget + (bad - budget * events) / max(most, events)


class Question:
    """The question whether a share of bad events is within its budget, and the evidence on it.

    most, mean: largest and mean number of events of one result
    share: share of all results that the question judges
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
        self._judge, self._max_events, self._mean_events = judge, most, mean
        self._requests, self._events, self._bad = 0, 0, 0.0
        self._block: list[tuple[float, float]] = []  # values of the open block: for holds, for fails
        self._for_holds, self._for_fails = Observations(), Observations()

    def take(self, result: ProbeResult | None) -> None:
        """Add the next result to the open block; None: the engine is loading or shutting down."""
        events, bad, surely_bad = self._judge(result)
        if not events:
            return
        self._requests += 1
        self._events, self._bad = self._events + events, self._bad + bad
        for_holds, for_fails = (observed(number, events, self.budget, self._max_events) for number in (bad, surely_bad))
        self._block.append((for_holds, for_fails))

    @property
    def is_over_budget(self) -> bool:
        """True if the observed share of bad events is above the budget, whether or not that is statistically significant."""
        return self._bad > self.budget * self._events

    def close_block(self) -> None:
        """End the open block: its mean is the next observation. A block without events adds none."""
        if self._block:
            for observations, values in zip(
                (self._for_holds, self._for_fails), zip(*self._block, strict=True), strict=True
            ):
                observations.add(fmean(values))
            self._block.clear()

    def finding(self, holds_error: float, fails_error: float) -> Finding:
        """The evidence so far as a finding. holds_error, fails_error: allowed probability that the claim "holds" or "fails" is wrong"""
        shown = self.evidence(holds_error, fails_error)
        lower, upper = confidence_bounds(self._for_holds, holds_error)
        return Finding(
            self.name,
            shown,
            self.budget,
            self._requests,
            round(self._for_holds.count),
            self._events,
            round(self._bad),
            self._event_share(lower),
            self._event_share(upper),
            None if shown == "undecided" else self.error(shown),
            self._more(holds_error, fails_error) if shown == "undecided" else None,
        )

    def evidence(self, holds_error: float, fails_error: float) -> Evidence:
        """The evidence so far, without the confidence interval, which is expensive."""
        observed, surely_bad = self._for_holds, self._for_fails
        return evidence(observed, self.budget, surely_bad=surely_bad, holds_error=holds_error, fails_error=fails_error)

    def error(self, claim: Evidence) -> float:
        """Largest probability that the claim "holds" or "fails" is wrong, by the evidence so far."""
        return math.exp(-self.log_evidence(claim))

    def least(self, error: float) -> int:
        """Fewest observations that can show that the share is within the budget."""
        good = self.budget * (1 - self._mean_events / self._max_events)
        return min_observations(self.budget, error, Observations([good]))

    def log_evidence(self, claim: Evidence) -> float:
        """ln(evidence) for a claim. The probability of making the claim wrongly is exp(−ln(evidence))."""
        if claim == "fails":
            return log_evidence_above(self._for_fails, self.budget)
        return log_evidence_below(self._for_holds, self.budget)

    def _event_share(self, mean: float) -> float:
        """Share of bad events that a mean of the observations corresponds to."""
        weight = self._events / self._max_events / self._requests if self._requests else 1.0
        return min(1.0, max(0.0, self.budget + (mean - self.budget) / weight))

    def _more(self, holds_error: float, fails_error: float) -> int | None:
        """Estimated further requests until "holds" or "fails" is decided at the present growth of the evidence; None without growth."""
        claims = ((self.log_evidence("holds"), holds_error), (self.log_evidence("fails"), fails_error))
        counts = [
            self._requests * (-math.log(error) / log_evidence - 1)
            for log_evidence, error in claims
            if log_evidence > MIN_LOG_EVIDENCE
        ]
        return max(1, math.ceil(min(counts))) if counts else None


class Gate:
    """Decides on one target from the evidence on several questions.

    least: fewest requests that can show that the target is ready, at the mean rate; most: limit of requests
    least_blocks: the same as a number of observations: blocks, or requests if `block_s` is 0
    block_s: length of a block in seconds; 0: each result is a block
    """

    def __init__(
        self,
        slos: Sequence[tuple[Slo, JudgedStream]],
        *,
        rate_per_s: float,
        burst_s: float = BURST_S,
        most: int | None = None,
        error: float = 0.05,
        failures: float = 0.10,
        baseline: Sequence[Reference] = (),
    ) -> None:
        """Create the questions: for the SLOs, each with the stream that it judges, and for a baseline.

        Each workload of a mix is a stream and has its own questions; a baseline is compared with the whole mix.
        rate_per_s: mean rate of the requests
        burst_s: longest burst of bad results to expect; 0: bad results are independent
        most: number of requests; None: as many as usually suffice for a decision
        failures: tolerated share of failed requests
        Raises ValueError if so many requests can never show that the target is ready.
        """
        self._answers = Question(ANSWERS, failures, _answered)
        self._refusals = Question("refused", MAX_REFUSED_RATIO, _refused)
        self._results: list[ProbeResult | None] = []
        self._objectives = [
            *_slo_questions(slos),
            *(Question(limits.name, round(1 - limits.q, 6), partial(_slower, limits)) for limits in baseline),
        ]
        self._error = error
        self._fails_error = error / (1 + len(self._objectives))
        self.block_s = burst_s / BLOCKS_PER_BURST
        self._first_s, self._block_end_s = math.inf, -math.inf
        per_block = rate_per_s * self.block_s
        least = {  # requests of those blocks that have a judged one (Poisson), in the mean
            question: question.least(error)
            * (per_block / -math.expm1(-per_block * question.share) if per_block else 1.0 / question.share)
            for question in self._questions
        }
        hardest = max(least, key=lambda question: least[question])
        self.least_blocks = hardest.least(error)
        self.least = math.ceil(least[hardest])
        usual = max(MOST_AT_LEAST, min(MOST_PER_LEAST * self.least, round(MOST_S * rate_per_s)))
        self.most = usual if most is None else most
        if self.least > self.most:
            allowed = f"{float(100 * Decimal(str(hardest.budget))):.4g}%"
            in_blocks = f" ({self.least_blocks:,} blocks of {self.block_s:g} s at {rate_per_s:g}/s)" if burst_s else ""
            raise ValueError(
                f"{hardest.name}: to show that at most {allowed} are bad takes {self.least:,} requests if all are good{in_blocks}, "
                f"and {self.most:,} are allowed; allow more, expect shorter bursts, or ask for less"
            )

    def take(self, result: ProbeResult | None, at_s: float) -> GateVerdict | None:
        """Take the next result by due time; returns the verdict, None without a decision.

        result: None if nothing was sent because the engine says that it is loading or shutting down. In the order of answers
        instead of due times, slow requests would come too late to count.
        at_s: its due time, in seconds of any clock
        """
        state: State = "not_enough_data"
        if at_s >= self._block_end_s:
            state = self._closed_block()
            self._first_s = min(at_s, self._first_s)
            self._block_end_s = at_s + self.block_s - math.fmod(at_s - self._first_s, self.block_s or 1.0)
        self._results.append(result)
        for question in (*self._questions, self._refusals):
            question.take(result)
        if not self.block_s:
            state = self._closed_block()
        if state != "not_enough_data":
            return self._verdict(state)
        return self.verdict() if len(self._results) >= self.most else None

    def verdict(self) -> GateVerdict:
        """The verdict if no more results follow."""
        state = self._state()
        if self._refusals.is_over_budget:
            state = "not_judged"
        elif state == "not_enough_data" and "fails" in map(self._evidence, self._objectives):
            state = "degraded"
        return self._verdict(state)

    def nothing_listens(self, result: ProbeResult, at_s: float) -> GateVerdict:
        """Verdict if neither the look-up of the model nor the first request found a server. result: of that request"""
        self.take(result, at_s)
        why = f"nothing listens: {result.reason}"
        return replace(self.verdict(), state="not_ready", why=why, findings=())

    def _closed_block(self) -> State:
        """Close the open block; returns the state that the evidence shows."""
        for question in (*self._questions, self._refusals):
            question.close_block()
        return self._state()

    @property
    def _questions(self) -> list[Question]:
        return [self._answers, *self._objectives]

    def _evidence(self, question: Question) -> Evidence:
        return question.evidence(self._error, self._fails_error)

    def _state(self) -> State:
        """State that the evidence shows. A target that does not answer also fails its objectives: while failures may be the cause,
        their question is decided first.
        """
        if self._evidence(self._refusals) == "fails":
            return "not_judged"
        if self._refusals.is_over_budget:
            return "not_enough_data"
        answers = self._evidence(self._answers)
        if answers == "fails":
            return "not_ready"
        objectives = [self._evidence(question) for question in self._objectives]
        if "fails" in objectives and (answers == "holds" or self._answers.log_evidence("fails") <= 0):
            return "degraded"
        return "ready" if {answers, *objectives} == {"holds"} else "not_enough_data"

    def _verdict(self, state: State) -> GateVerdict:
        findings = tuple(question.finding(self._error, self._fails_error) for question in self._questions)
        error: float | None = None
        if state == "ready":
            error = max(question.error("holds") for question in self._questions)
        elif state == "not_ready":
            error = len(self._questions) * self._answers.error("fails")
        elif state == "degraded":
            failing = [question for question in self._objectives if self._evidence(question) == "fails"]
            error = len(self._questions) * min(question.error("fails") for question in failing)
        sent = [result for result in self._results if result is not None]
        refused, not_counted = refused_requests(sent), sum(result.outcome in NOT_COUNTED for result in sent)
        why = "; ".join(filter(None, (self._why(state, findings, not_counted), str(refused))))
        return GateVerdict(state, why, len(self._results), not_counted, error, findings, refused)

    def _why(self, state: State, findings: Sequence[Finding], not_counted: int) -> str:
        if state == "not_ready":
            failures = Counter(
                "loading or shutting down" if result is None else result.reason
                for result in self._results
                if result is None or result.outcome in BAD
            )
            ((failure, _),) = failures.most_common(1)
            return f"{findings[0].bad} of {findings[0].events} requests failed, most often: {failure}"
        if state == "degraded":
            return "fails: " + "; ".join(
                f"{finding.name}: {observed_share(finding)}" for finding in findings if finding.evidence == "fails"
            )
        if state == "ready":
            return "; ".join(f"{finding.name}: {observed_share(finding)}" for finding in findings)
        if state == "not_judged":
            return ""
        undecided = []
        for finding in findings:
            if finding.evidence == "undecided":
                more = f", some {finding.more} more requests may show it" if finding.more else ""
                bounds = f"in truth {100 * finding.lower:.2g}% to {100 * finding.upper:.2g}%"
                undecided.append(f"{finding.name}: {observed_share(finding)}, {bounds}{more}")
        late = f"; {not_counted} of {len(self._results)} were not counted" if not_counted else ""
        return f"undecided after {len(self._results)} requests: {'; '.join(undecided)}{late}"


def decision(verdict: GateVerdict, rollback_risk: str | None) -> Decision | None:
    """Decision to store with the result: accepted if ready, else rejected; None if the verdict decides neither.

    rollback_risk: needs and risks of going back, as a person stated them
    """
    if verdict.state in ("not_enough_data", "not_judged"):
        return None
    return Decision(verdict.state == "ready", verdict.why, rollback_risk)


def with_cost(verdict: GateVerdict, cost: CostFinding) -> GateVerdict:
    """The verdict, changed by the result of a cost target. It is changed only if all other questions hold."""
    if verdict.state != "ready":
        return verdict
    states: dict[Evidence, State] = {"holds": "ready", "fails": "degraded", "undecided": "not_enough_data"}
    state = states[cost.evidence]
    error = None if state == "not_enough_data" else ERROR if state == "degraded" else max(ERROR, verdict.error or 0.0)
    why = (
        f"{verdict.why}; {cost.why}"
        if state == "ready"
        else f"{'fails' if state == 'degraded' else 'undecided'}: {cost.why}"
    )
    return replace(verdict, state=state, why=why, error=error)


def reference(baseline: Sequence[RequestRow], latency: Latency, q: float, material: float) -> Reference:
    """Limits from quantile `q` of a latency of a baseline, plus `material` (0.2: 20% slower). Failed requests count as the slowest.

    Either end of the quantile's confidence interval is wrong with 2.5%, which adds to the error of the question.
    Raises ValueError for a baseline of too few requests.
    """
    values: list[float] = []
    for request in baseline:
        if request.outcome in BAD:
            values.append(math.inf)
        elif (value := request.latency(latency)) is not None:
            values.append(value)
    (quantile,) = quantiles(values, (q,)) or (None,)
    if quantile is None or quantile.lower is None or quantile.upper is None or math.isinf(quantile.upper):
        needed = least_samples(q)
        why = f"{'are too few' if len(values) < needed else 'fail too often'} for its {percentile_name(q)}"
        raise ValueError(
            f"the baseline's {len(values)} requests with a {latency.upper()} {why}; keep one of {max(needed, 300)} or more"
        )
    return Reference(latency, q, quantile.lower * (1 + material), quantile.upper * (1 + material))


def least_samples(q: float) -> int:
    """Fewest samples for which quantile `q` has a confidence interval with both ends."""
    for n in count(1):
        (quantile,) = quantiles(range(n), (q,))
        if quantile.lower is not None and quantile.upper is not None:
            break
    return n


def slo_question(
    slo: Slo, max_tokens: int, mean_tokens: float, workload: str | None = None, share: float = 1.0
) -> Question:
    """The question whether the share of bad events of an SLO is within its budget.

    max_tokens, mean_tokens: largest and mean number of output tokens
    workload: judge only results of this workload, which are `share` of all; None: judge all results
    """

    def judge(result: ProbeResult | None) -> Judged:
        is_judged = result is not None and workload in (None, result.workload)
        events, bad = count_events(slo, result) if result is not None and is_judged else (0, 0)
        return events, bad, bad

    most = max_events_per_probe(slo, max_tokens)
    name = slo.name if workload is None else f"{slo.name} of {workload}"
    mean = min(mean_events_per_probe(slo, mean_tokens), most)
    return Question(name, float(slo.error_budget_ratio), judge, most, mean, share)


def observed_share(finding: Finding) -> str:
    """Bad events, their share and the allowed share as text."""
    share = finding.bad / finding.events if finding.events else 0.0
    return f"{finding.bad} of {finding.events} bad ({100 * share:.3g}%, allowed {100 * finding.budget:.3g}%)"


def _slo_questions(slos: Sequence[tuple[Slo, JudgedStream]]) -> list[Question]:
    """A question for each SLO and workload; the workload is part of the name if there are several."""
    rates_per_s = {stream.workload: stream.rate_per_s for _, stream in slos}
    if len(rates_per_s) < 2:
        return [slo_question(slo, stream.max_tokens, stream.mean_tokens) for slo, stream in slos]
    total_per_s = sum(rates_per_s.values())
    return [
        slo_question(slo, stream.max_tokens, stream.mean_tokens, stream.workload, stream.rate_per_s / total_per_s)
        for slo, stream in slos
    ]


def _answered(result: ProbeResult | None) -> Judged:
    if result is None or result.outcome in BAD:
        return 1, 1, 1
    return (1, 0, 0) if result.outcome in ANSWERED else (0, 0, 0)


def _refused(result: ProbeResult | None) -> Judged:
    is_refused = result is not None and result.outcome is Outcome.REJECTED
    return (0, 0, 0) if result is None or result.outcome in NOT_COUNTED else (1, is_refused, is_refused)


def _slower(limits: Reference, result: ProbeResult | None) -> Judged:
    if result is None:
        return 0, 0, 0
    if result.outcome in BAD:
        return 1, 1, 1
    value = result.timeline.ttft_s if limits.latency == "ttft" else result.timeline.tpot_s
    if value is None or result.outcome not in ANSWERED or result.warm_up or result.cached:
        return 0, 0, 0
    return 1, value > limits.sure_s, value > limits.slower_s
