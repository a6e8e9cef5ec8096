"""Readiness decision: takes results in due order, and may return a verdict after each.

The gate tests several questions at once: whether the target answers; for each SLO, whether its share of bad events is within the
budget; and with a baseline, whether a latency is slower by more than what is material. Each question is a sequential test
(`statistics.sequential_test`), so the gate ends as soon as the evidence decides.

ready: every question is met, each with an error of at most `error`, which also bounds the error of "ready"
degraded: the target answers, but a question is missed, with an error of `error` shared among all questions
not_ready: more than the tolerated share fails, with the same error: failures of every kind, rejected requests (such as 401: no SLO
    counts them, but they serve no user), and "loading" or "shutting down"
not_enough_data: the requests are used up without a decision
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from typing import Literal

from prober.measure.objective import JudgedStream, Slo
from prober.measure.outcome import ANSWERED, BAD, Outcome
from prober.measure.result import ProbeResult
from prober.measure.slo_events import count_events, max_events_per_probe, mean_events_per_probe
from prober.results.result import Request
from prober.statistics.quantiles import quantiles
from prober.statistics.sequential_test import (
    Observations,
    confidence_bounds,
    log_evidence_above,
    log_evidence_below,
    min_observations,
)

State = Literal["ready", "degraded", "not_ready", "not_enough_data"]
Answer = Literal["met", "missed", "undecided"]
Latency = Literal["ttft", "tpot"]
# Events; bad events counted when showing that they are few, and when showing that they are many.
Judged = tuple[int, float, float]
ANSWERS = "answers"
MIN_BAD_REQUESTS = 2  # a single bad one proves nothing
COMPARED: tuple[tuple[Latency, float], ...] = (("ttft", 0.5), ("ttft", 0.9), ("tpot", 0.5))
MIN_LOG_EVIDENCE = 0.5  # below it, the evidence says nothing about how many more requests are needed
_ANSWERED = frozenset(outcome.value for outcome in ANSWERED)
_BAD = frozenset(outcome.value for outcome in BAD)


@dataclass(frozen=True, slots=True)
class Reference:
    """Limits of a latency quantile from a baseline. The target is slower if more than 1 − q of its requests are above them.

    sure_s: the lower end of the baseline's interval plus the material change; requests below it are surely not slower
    slower_s: the same for the upper end; requests above it surely are
    count: requests of the baseline
    """

    latency: Latency
    q: float
    sure_s: float
    slower_s: float
    count: int

    @property
    def name(self) -> str:
        """Name of the question, such as `ttft p50 of baseline`."""
        return f"{self.latency} p{self.q * 100:g} of baseline"


@dataclass(frozen=True, slots=True)
class Finding:
    """State of one question.

    budget: share of events that may be bad
    requests, events, bad: observed so far
    lower, upper: bounds of the share, at the gate's error
    error: largest probability that the answer is wrong; None while undecided
    more: estimate of further requests until a decision
    """

    name: str
    answer: Answer
    budget: float
    requests: int
    events: int
    bad: int
    lower: float
    upper: float
    error: float | None
    more: int | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict of the gate.

    requests: sent so far
    not_counted: of them, sent late by the prober or cancelled
    error: largest probability that the state is wrong; None for not_enough_data, which claims nothing
    """

    state: State
    why: str
    requests: int
    not_counted: int
    error: float | None
    findings: tuple[Finding, ...]


class Question:
    """A share of bad events tested against its budget. most, mean: largest and mean number of events of one result."""

    def __init__(
        self, name: str, budget: float, judge: Callable[[ProbeResult | None], Judged], most: int = 1, mean: float = 1.0
    ) -> None:
        self.name, self.budget = name, budget
        self._judge, self._max_events, self._mean_events = judge, most, mean
        self._events, self._bad, self._bad_requests = 0, 0.0, 0
        self._for_met, self._for_missed = Observations(), Observations()

    def take(self, result: ProbeResult | None) -> None:
        """Take the next result; None: the engine is loading or shutting down.

        A result of several events is one observation, budget + (bad − budget · events) ÷ most: between 0 and 1, and its mean is
        above the budget where the ratio of the sums is. So the gaps of one answer need not be independent.
        """
        events, bad_for_met, bad_for_missed = self._judge(result)
        if not events:
            return
        scale = max(self._max_events, events)
        self._events, self._bad = self._events + events, self._bad + bad_for_met
        self._bad_requests += bad_for_missed > 0
        self._for_met = self._for_met.plus(self.budget + (bad_for_met - self.budget * events) / scale)
        self._for_missed = self._for_missed.plus(self.budget + (bad_for_missed - self.budget * events) / scale)

    def finding(self, met_error: float, missed_error: float) -> Finding:
        """State of the question at these errors of either answer."""
        answer = self.answer(met_error, missed_error)
        lower, upper = confidence_bounds(self._for_met, met_error)
        return Finding(
            self.name,
            answer,
            self.budget,
            self._for_met.count,
            self._events,
            round(self._bad),
            self._event_share(lower),
            self._event_share(upper),
            None if answer == "undecided" else self.error(answer),
            self._more(met_error, missed_error) if answer == "undecided" else None,
        )

    def answer(self, met_error: float, missed_error: float) -> Answer:
        """Answer at these errors, without the interval, which is expensive."""
        if self._bad_requests >= MIN_BAD_REQUESTS and self._log_evidence("missed") >= -math.log(missed_error):
            return "missed"
        return "met" if self._log_evidence("met") >= -math.log(met_error) else "undecided"

    def error(self, answer: Answer) -> float:
        """Largest probability that this answer is wrong."""
        return math.exp(-self._log_evidence(answer))

    def least(self, error: float) -> int:
        """Fewest requests that can show that the question is met."""
        return min_observations(self.budget, error, self.budget * (1 - self._mean_events / self._max_events))

    def _log_evidence(self, answer: Answer) -> float:
        if answer == "missed":
            return log_evidence_above(self._for_missed, self.budget)
        return log_evidence_below(self._for_met, self.budget)

    def _event_share(self, mean: float) -> float:
        """Share of events that corresponds to this mean of observations."""
        weight = self._events / self._max_events / self._for_met.count if self._for_met.count else 1.0
        return min(1.0, max(0.0, self.budget + (mean - self.budget) / weight))

    def _more(self, met_error: float, missed_error: float) -> int | None:
        """Requests until the sooner decision, if the evidence grows at its present rate."""
        evidence = ((self._log_evidence("met"), met_error), (self._log_evidence("missed"), missed_error))
        counts = [
            self._for_met.count * (-math.log(error) / log_evidence - 1)
            for log_evidence, error in evidence
            if log_evidence > MIN_LOG_EVIDENCE
        ]
        return max(1, math.ceil(min(counts))) if counts else None


class Gate:
    """Questions about one target. Raises ValueError if `most` requests can never show that it is ready.

    least: fewest requests that can show that it is ready
    """

    def __init__(
        self,
        slos: Sequence[tuple[Slo, JudgedStream]],
        *,
        most: int,
        error: float = 0.05,
        failures: float = 0.10,
        baseline: Sequence[Reference] = (),
    ) -> None:
        """slos: each with the stream that it judges; most: number of requests; failures: tolerated share of failed requests."""
        self._answers = Question(ANSWERS, failures, _answered)
        self._objectives = [
            *(slo_question(slo, stream.max_tokens, stream.mean_tokens) for slo, stream in slos),
            *(Question(limits.name, round(1 - limits.q, 6), _slower(limits)) for limits in baseline),
        ]
        self._most, self._error = most, error
        self._missed_error = error / (1 + len(self._objectives))
        self._requests = self._not_counted = 0
        self._failures: Counter[str] = Counter()
        hardest = max(self._questions, key=lambda question: question.least(error))
        self.least = hardest.least(error)
        if self.least > most:
            allowed = f"{float(100 * Decimal(str(hardest.budget))):.4g}%"
            raise ValueError(
                f"{hardest.name}: to show that at most {allowed} are bad takes {self.least:,} requests if all are good, "
                f"and {most:,} are allowed; allow more, or ask for less"
            )

    def take(self, result: ProbeResult | None) -> Verdict | None:
        """Take the next result by due time; returns the verdict, None without a decision.

        result: None if nothing was sent because the engine says that it is loading or shutting down. In the order of the answers
        instead of due times, slow requests would come too late to count.
        """
        self._requests += 1
        self._count_failure(result)
        for question in self._questions:
            question.take(result)
        state = self._state()
        if state != "not_enough_data":
            return self._verdict(state)
        return self.verdict() if self._requests >= self._most else None

    def verdict(self) -> Verdict:
        """Verdict if no more results follow."""
        state = self._state()
        if state == "not_enough_data" and any(self._answer(question) == "missed" for question in self._objectives):
            state = "degraded"
        return self._verdict(state)

    @property
    def _questions(self) -> list[Question]:
        return [self._answers, *self._objectives]

    def _count_failure(self, result: ProbeResult | None) -> None:
        if result is None:
            self._failures["loading or shutting down"] += 1
        elif result.outcome in BAD or result.outcome is Outcome.REJECTED:
            self._failures[f"{result.outcome.value}: {result.detail}" if result.detail else result.outcome.value] += 1
        elif result.outcome not in ANSWERED:
            self._not_counted += 1

    def _answer(self, question: Question) -> Answer:
        return question.answer(self._error, self._missed_error)

    def _state(self) -> State:
        """State that the evidence shows. A target that does not answer misses the objectives too, so its answers are decided first."""
        answers = self._answer(self._answers)
        if answers == "missed":
            return "not_ready"
        if answers == "undecided":
            return "not_enough_data"
        objectives = [self._answer(question) for question in self._objectives]
        if "missed" in objectives:
            return "degraded"
        return "not_enough_data" if "undecided" in objectives else "ready"

    def _verdict(self, state: State) -> Verdict:
        findings = tuple(question.finding(self._error, self._missed_error) for question in self._questions)
        error: float | None = None
        if state == "ready":
            error = max(question.error("met") for question in self._questions)
        elif state == "not_ready":
            error = len(self._questions) * self._answers.error("missed")
        elif state == "degraded":
            missed = [question for question in self._objectives if self._answer(question) == "missed"]
            error = len(self._questions) * min(question.error("missed") for question in missed)
        return Verdict(state, self._why(state, findings), self._requests, self._not_counted, error, findings)

    def _why(self, state: State, findings: Sequence[Finding]) -> str:
        if state == "not_ready":
            ((failure, _),) = self._failures.most_common(1)
            return f"{findings[0].bad} of {findings[0].events} requests failed, most often: {failure}"
        if state == "degraded":
            return "missed: " + "; ".join(
                f"{finding.name}: {observed_share(finding)}" for finding in findings if finding.answer == "missed"
            )
        if state == "ready":
            return "; ".join(f"{finding.name}: {observed_share(finding)}" for finding in findings)
        undecided = "; ".join(_undecided(finding) for finding in findings if finding.answer == "undecided")
        late = f"; {self._not_counted} of {self._requests} were not counted" if self._not_counted else ""
        return f"after {self._requests} requests still open: {undecided}{late}"


def reference(baseline: Sequence[Request], latency: Latency, q: float, material: float) -> Reference:
    """Limits from quantile `q` of a baseline, slower by `material` (0.2: 20%). Its failed requests count as the slowest.

    Either end of the quantile's interval is wrong with 2.5%, which adds to the error of the question.
    Raises ValueError for a baseline of too few requests.
    """
    values: list[float] = []
    for request in baseline:
        value = request.ttft_s if latency == "ttft" else request.tpot_s
        if request.outcome in _BAD:
            values.append(math.inf)
        elif request.outcome in _ANSWERED and not request.warm_up and not request.cached and value is not None:
            values.append(value)
    (quantile,) = quantiles(values, (q,)) or (None,)
    if quantile is None or quantile.lower is None or quantile.upper is None or math.isinf(quantile.upper):
        needed = least_samples(q)
        why = f"are too few for its p{q * 100:g}" if len(values) < needed else f"fail too often for its p{q * 100:g}"
        raise ValueError(
            f"the baseline's {len(values)} requests with a {latency.upper()} {why}; keep one of {max(needed, 300)} or more"
        )
    return Reference(latency, q, quantile.lower * (1 + material), quantile.upper * (1 + material), quantile.count)


def least_samples(q: float) -> int:
    """Fewest samples whose quantile `q` has an interval with both ends."""
    for n in count(1):
        (quantile,) = quantiles(range(n), (q,))
        if quantile.lower is not None and quantile.upper is not None:
            break
    return n


def slo_question(slo: Slo, max_tokens: int, mean_tokens: float) -> Question:
    """Whether the share of bad events of an SLO is within its budget. max_tokens, mean_tokens: of the output."""

    def judge(result: ProbeResult | None) -> Judged:
        events, bad = count_events(slo, result) if result is not None else (0, 0)
        return events, bad, bad

    most = max_events_per_probe(slo, max_tokens)
    return Question(
        slo.name, float(slo.error_budget_ratio), judge, most, min(mean_events_per_probe(slo, mean_tokens), most)
    )


def observed_share(finding: Finding) -> str:
    """Bad events, their share and the allowed share as text."""
    share = finding.bad / finding.events if finding.events else 0.0
    return f"{finding.bad} of {finding.events} bad ({100 * share:.3g}%, allowed {100 * finding.budget:.3g}%)"


def _answered(result: ProbeResult | None) -> Judged:
    if result is None or result.outcome in BAD or result.outcome is Outcome.REJECTED:
        return 1, 1, 1
    return (1, 0, 0) if result.outcome in ANSWERED else (0, 0, 0)


def _slower(limits: Reference) -> Callable[[ProbeResult | None], Judged]:
    def judge(result: ProbeResult | None) -> Judged:
        if result is None:
            return 0, 0, 0
        if result.outcome in BAD:
            return 1, 1, 1
        value = result.timeline.ttft_s if limits.latency == "ttft" else result.timeline.tpot_s
        if value is None or result.outcome not in ANSWERED or result.warm_up or result.cached:
            return 0, 0, 0
        return 1, value > limits.sure_s, value > limits.slower_s

    return judge


def _undecided(finding: Finding) -> str:
    more = f", some {finding.more} more requests may show it" if finding.more else ""
    bounds = f"in truth {100 * finding.lower:.2g}% to {100 * finding.upper:.2g}%"
    return f"{finding.name}: {observed_share(finding)}, {bounds}{more}"
