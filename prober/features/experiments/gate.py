"""Decides readiness: takes results by due time, and may return a verdict after each block of them.

The gate tests several questions at once: whether the target answers; for each SLO, whether its share of bad events is within the
budget; with a baseline, whether a latency is materially slower. Each question is a sequential test
(`statistics.sequential_test`), so the gate ends as soon as the evidence decides.

Observations are blocks of time (`results.judgement`). The errors below are bounds if each block's expected share of bad
events, given the blocks before it, is on one side of the budget.

ready: every question holds, each with an error of at most `error`, which also bounds the error of "ready"
degraded: a question fails, with an error of `error` shared among all questions, and failures are within the tolerated share
not_ready: more than the tolerated share fails, with the same error (failures of every kind, "loading" and "shutting down"),
    nothing listens at the address, or the target is `failing` by the rule of the daemon (`measure.target_state`)
not_enough_data: no decision within the allowed requests
not_judged: too many requests were refused (`results.refused_requests`), with an error of at most `error`, or after the allowed
    requests. While too many are refused, nothing else is decided
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from itertools import count
from typing import Literal

from prober.measure.objective import JudgedStream, Slo
from prober.measure.outcome import ANSWERED, BAD, Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import STATE_OF_OUTCOME, TargetState, WorkloadState
from prober.results.cost import CostFinding
from prober.results.judgement import BURST_S, Finding, Judged, Judgement, Question, block_s, slo_question, together
from prober.results.refused_requests import MAX_REFUSED_RATIO, NOT_COUNTED, RefusedRequests, refused_requests
from prober.results.result import Decision, RequestRow
from prober.statistics.quantiles import percentile_name, quantiles
from prober.statistics.sequential_test import ERROR, Evidence

State = Literal["ready", "degraded", "not_ready", "not_enough_data", "not_judged"]
Latency = Literal["ttft", "tpot"]
STATES: dict[Evidence, State] = {"holds": "ready", "fails": "degraded", "undecided": "not_enough_data"}
ANSWERS, MAX_FAILED_RATIO = "answers", 0.10
COMPARED: tuple[tuple[Latency, float], ...] = (("ttft", 0.5), ("ttft", 0.9), ("tpot", 0.5))
# Default limit of a gate's requests: a multiple of the fewest that prove "ready", within an hour, but at least 1,000.
MOST_PER_LEAST, MOST_S, MOST_AT_LEAST = 3, 3_600.0, 1_000


@dataclass(frozen=True, slots=True)
class Reference:
    """Limits of a latency quantile from a baseline. The target is slower if more than 1 − q of its requests exceed them.

    sure_s: lower end of the baseline's confidence interval plus the material change; requests below it are certainly not slower
    slower_s: the same from the upper end; requests above it certainly are
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
class GateVerdict:
    """Verdict of the gate.

    requests: sent so far
    not_counted: how many of them were cancelled, or not sent by the prober
    error: largest probability that the state is wrong; None for not_enough_data and not_judged, and if it is failing now
    refused: number and share of refused requests
    """

    state: State
    why: str
    requests: int
    not_counted: int
    error: float | None
    findings: tuple[Finding, ...]
    refused: RefusedRequests = RefusedRequests()


class Gate:
    """Judges one target by the evidence on several questions.

    least: fewest requests that can prove readiness, at the mean rate; most: limit of requests
    least_blocks: the same as a number of observations: blocks, or requests if `block_s` is 0
    block_s: see `judgement.block_s`
    """

    def __init__(
        self,
        slos: Sequence[tuple[Slo, JudgedStream]],
        *,
        rate_per_s: float,
        burst_s: float = BURST_S,
        most: int | None = None,
        error: float = 0.05,
        baseline: Sequence[Reference] = (),
    ) -> None:
        """Create the questions: for SLOs, each with the stream that it judges, and for a baseline.

        Each workload of a mix is a stream with its own questions; a baseline is compared with the whole mix.
        rate_per_s: mean rate of the requests
        burst_s: longest expected burst of bad results; 0: bad results are independent
        most: limit of requests; None: as many as usually suffice
        Raises ValueError if that many requests can never prove readiness.
        """
        self._answers = Question(ANSWERS, MAX_FAILED_RATIO, _answered)
        self._refusals = Question("refused", MAX_REFUSED_RATIO, _refused)
        self._target = WorkloadState("")  # by the rule of the daemon
        self._results: list[ProbeResult | None] = []
        self._objectives = [
            *_slo_questions(slos),
            *(Question(limits.name, round(1 - limits.q, 6), partial(_slower, limits)) for limits in baseline),
        ]
        self._error = error
        self._fails_error = error / (1 + len(self._objectives))
        self._questions = [self._answers, *self._objectives]
        self._judgement = Judgement((*self._questions, self._refusals), burst_s)
        self.block_s = block_s(burst_s)
        per_block = rate_per_s * self.block_s
        least = {question: question.requests_of(question.least(error), per_block) for question in self._questions}
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
        """Take the next result by due time; return the verdict, or None without a decision.

        result: None if nothing was sent because the engine reports that it loads or shuts down
        at_s: its due time, in seconds of any clock
        """
        self._results.append(result)
        if result is not None and (end := STATE_OF_OUTCOME.get(result.outcome)) is not None:
            self._target.ended(end, result.reason, round(at_s * 1e9))
            if self._target.state is TargetState.FAILING and not self._refusals.is_over_budget:
                self._judgement.close_block()
                return self._failing(f"failing: {self._target.reason}")
        if self._judgement.take(result, at_s) and (state := self._state()) != "not_enough_data":
            return self._verdict(state)
        return self.verdict() if len(self._results) >= self.most else None

    def verdict(self) -> GateVerdict:
        """The verdict if no more results follow."""
        state = self._state()
        if self._refusals.is_over_budget:
            state = "not_judged"
        elif state == "not_enough_data" and together(map(self._evidence, self._objectives)) == "fails":
            state = "degraded"
        return self._verdict(state)

    def nothing_listens(self, result: ProbeResult, at_s: float) -> GateVerdict:
        """Verdict if neither the model look-up nor the first request found a server. result: that request's result"""
        self.take(result, at_s)
        return replace(self._failing(f"nothing listens: {result.reason}"), findings=())

    def _failing(self, why: str) -> GateVerdict:
        return replace(self.verdict(), state="not_ready", why=why, error=None)

    def _evidence(self, question: Question) -> Evidence:
        return question.evidence(self._error, self._fails_error)

    def _state(self) -> State:
        """State that the evidence proves. A target that does not answer also misses its objectives: while failures may be the cause,
        the question about them is decided first.
        """
        if self._evidence(self._refusals) == "fails":
            return "not_judged"
        if self._refusals.is_over_budget:
            return "not_enough_data"
        answers = self._evidence(self._answers)
        if answers == "fails":
            return "not_ready"
        objectives = together(map(self._evidence, self._objectives))
        if objectives == "fails" and answers != "holds" and self._answers.log_evidence("fails") > 0:
            return "not_enough_data"
        return STATES[together((answers, objectives))]

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
        if state == "not_judged":
            return ""
        counts = {"ready": "holds", "degraded": "fails"}.get(state, "undecided")
        texts = "; ".join(finding.text() for finding in findings if finding.evidence == counts)
        if state != "not_enough_data":
            return f"fails: {texts}" if state == "degraded" else texts
        late = f"; {not_counted} of {len(self._results)} were not counted" if not_counted else ""
        return f"undecided after {len(self._results)} requests: {texts}{late}"


def decision(verdict: GateVerdict, rollback_risk: str | None) -> Decision | None:
    """Decision to store with the result: accepted if ready, else rejected; None if the verdict is neither.

    rollback_risk: what going back needs and risks, written by a person
    """
    if verdict.state in ("not_enough_data", "not_judged"):
        return None
    return Decision(verdict.state == "ready", verdict.why, rollback_risk)


def with_cost(verdict: GateVerdict, cost: CostFinding) -> GateVerdict:
    """Apply a cost target's result to the verdict. It changes only if all other questions hold."""
    if verdict.state != "ready":
        return verdict
    errors = {"holds": max(ERROR, verdict.error or 0.0), "fails": ERROR, "undecided": None}
    state, why = STATES[cost.evidence], cost.joined(verdict.why)
    return replace(verdict, state=state, why=why, error=errors[cost.evidence])


def reference(baseline: Sequence[RequestRow], latency: Latency, q: float, material: float) -> Reference:
    """Limits from a baseline's latency quantile `q`, plus `material` (0.2: 20% slower). Failed requests count as the slowest.

    Either end of the quantile's confidence interval is wrong with 2.5%, which adds to the question's error.
    Raises ValueError if the baseline has too few requests.
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
    """Fewest samples for which quantile `q` has a two-sided confidence interval."""
    for n in count(1):
        (quantile,) = quantiles(range(n), (q,))
        if quantile.lower is not None and quantile.upper is not None:
            break
    return n


def _slo_questions(slos: Sequence[tuple[Slo, JudgedStream]]) -> list[Question]:
    """One question per SLO and workload; its name has the workload if there are several."""
    rates_per_s = {stream.workload: stream.rate_per_s for _, stream in slos}
    total_per_s = sum(rates_per_s.values())
    return [
        slo_question(
            *(slo, stream.max_tokens, stream.mean_tokens),
            *((stream.workload, stream.rate_per_s / total_per_s) if len(rates_per_s) > 1 else ()),
        )
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
