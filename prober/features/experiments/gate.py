"""Readiness decision: takes results in due order, and after each may return a verdict.

It tests several questions at once: for each SLO, whether its share of bad events is within the budget; for the target, whether it
answers at all; and with a baseline, whether a latency is slower by more than what is material. Each question is a sequential
test (`statistics.sequential_test`), so the gate ends as soon as the evidence decides.

ready      every question is met, each with an error of at most `error`; so "ready" is wrong with at most that probability
degraded   the target answers, but a question is missed, with an error of `error` shared among all questions
not_ready  more than the tolerated share fails, with the same error: failures of every kind, rejected requests (such as 401,
           which no SLO counts, but which serve no user), and "loading" or "shutting down"
not_enough_data  the requests are used up without a decision
"""

import math
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
Judged = tuple[
    int, float, float
]  # events; bad events counted when showing that they are few, and when showing that they are many
ANSWERS = "answers"
LEAST_BAD = 2  # requests; a single bad one proves nothing
COMPARED: tuple[tuple[Latency, float], ...] = (("ttft", 0.5), ("ttft", 0.9), ("tpot", 0.5))
_ANSWERED = frozenset(each.value for each in ANSWERED)
_BAD = frozenset(each.value for each in BAD)


@dataclass(frozen=True, slots=True)
class Reference:
    """Slower than the baseline by more than is material: a latency above these, in s, for more than 1 − q of the requests.

    q: 0 to 1; sure_s: material times the lower end of the baseline's interval, below which it surely is not slower;
    slower_s: that of the upper end, above which it surely is
    """

    latency: Latency
    q: float
    sure_s: float
    slower_s: float
    count: int

    @property
    def name(self) -> str:
        """Its name, such as `ttft p50 of baseline`."""
        return f"{self.latency} p{self.q * 100:g} of baseline"


@dataclass(frozen=True, slots=True)
class Finding:
    """One question. budget: the share that may be bad; requests, events, bad: seen; lower, upper: of the share, at the gate's error.

    error: the most that the answer errs with, None while undecided; more: requests that it may still take if things go on so
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
    """The verdict. requests: sent so far; not_counted: of them, sent late by the prober or cancelled.

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
        self._judge, self._most, self._mean = judge, most, mean
        self._events, self._bad, self._spoilt = 0, 0.0, 0
        self._sure, self._many = Observations(), Observations()

    def take(self, result: ProbeResult | None) -> None:
        """Take the next result; None: the engine is loading or shutting down.

        A result of several events is one observation, budget + (bad − budget · events) ÷ most: between 0 and 1, and its mean is
        above the budget where the ratio of the sums is. So the gaps of one answer need not be independent.
        """
        count, sure, many = self._judge(result)
        if not count:
            return
        most = max(self._most, count)
        self._events, self._bad, self._spoilt = self._events + count, self._bad + sure, self._spoilt + (many > 0)
        self._sure = self._sure.plus(self.budget + (sure - self.budget * count) / most)
        self._many = self._many.plus(self.budget + (many - self.budget * count) / most)

    def finding(self, met_error: float, missed_error: float) -> Finding:
        """As it stands, at these errors of either answer."""
        answer = self.answer(met_error, missed_error)
        lower, upper = confidence_bounds(self._sure, met_error)
        return Finding(
            self.name,
            answer,
            self.budget,
            self._sure.count,
            self._events,
            round(self._bad),
            self._share(lower),
            self._share(upper),
            None if answer == "undecided" else self.error(answer),
            self._more(met_error, missed_error) if answer == "undecided" else None,
        )

    def answer(self, met_error: float, missed_error: float) -> Answer:
        """The same, without the interval, which costs."""
        if self._spoilt >= LEAST_BAD and log_evidence_above(self._many, self.budget) >= -math.log(missed_error):
            return "missed"
        return "met" if log_evidence_below(self._sure, self.budget) >= -math.log(met_error) else "undecided"

    def error(self, answer: Answer) -> float:
        """The most that this answer errs with."""
        return math.exp(
            -(
                log_evidence_above(self._many, self.budget)
                if answer == "missed"
                else log_evidence_below(self._sure, self.budget)
            )
        )

    def least(self, error: float) -> int:
        """The fewest requests that can answer it well."""
        return min_observations(self.budget, error, self.budget * (1 - self._mean / self._most))

    def _share(self, mean: float) -> float:
        """The share of events that this mean of observations stands for."""
        weight = self._events / self._most / self._sure.count if self._sure.count else 1.0
        return min(1.0, max(0.0, self.budget + (mean - self.budget) / weight))

    def _more(self, met_error: float, missed_error: float) -> int | None:
        sides = (
            (log_evidence_below(self._sure, self.budget), met_error),
            (log_evidence_above(self._many, self.budget), missed_error),
        )
        grown = [
            self._sure.count * (-math.log(error) / evidence - 1)
            for evidence, error in sides
            if evidence > 0.5  # before that it points nowhere
        ]
        return max(1, math.ceil(min(grown))) if grown else None


class Gate:
    """The questions about one target, and how they stand. Raises ValueError where `most` requests can never make it ready.

    least: the fewest requests that can make it ready
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
        """slos: with what they judge; most: requests in all; failures: the share of them that is tolerated."""
        self._answers = Question(ANSWERS, failures, _answered)
        self._others = [
            *(_question(slo, use) for slo, use in slos),
            *(Question(each.name, round(1 - each.q, 6), _slower(each)) for each in baseline),
        ]
        self._most, self._error = most, error
        self._missed_error = error / (1 + len(self._others))
        self._requests = self._not_counted = 0
        self._failures: dict[str, int] = {}
        hardest = max([self._answers, *self._others], key=lambda each: each.least(error))
        self.least = hardest.least(error)
        if self.least > most:
            allowed = f"{float(100 * Decimal(str(hardest.budget))):.4g}%"
            raise ValueError(
                f"{hardest.name}: to show that at most {allowed} are bad takes {self.least:,} requests if all are good, "
                f"and {most:,} are allowed; allow more, or ask for less"
            )

    def take(self, result: ProbeResult | None) -> Verdict | None:
        """The next result by due time, None if nothing was sent as the engine says it is loading or shutting down.

        None while it goes on; in the order of due times, or the slow ones would come too late to count.
        """
        self._requests += 1
        self._note(result)
        for each in (self._answers, *self._others):
            each.take(result)
        state = self._state()
        if state != "not_enough_data":
            return self._verdict(state)
        return self.verdict() if self._requests >= self._most else None

    def verdict(self) -> Verdict:
        """As it stands, if no more is to come."""
        state = self._state()
        if state == "not_enough_data" and any(self._answer(each) == "missed" for each in self._others):
            state = "degraded"
        return self._verdict(state)

    def _note(self, result: ProbeResult | None) -> None:
        if result is None:
            self._failures["loading or shutting down"] = self._failures.get("loading or shutting down", 0) + 1
        elif result.outcome in BAD or result.outcome is Outcome.REJECTED:
            said = f"{result.outcome.value}: {result.detail}" if result.detail else result.outcome.value
            self._failures[said] = self._failures.get(said, 0) + 1
        elif result.outcome not in ANSWERED:
            self._not_counted += 1

    def _answer(self, question: Question) -> Answer:
        return question.answer(self._error, self._missed_error)

    def _state(self) -> State:
        """What is known for good: whether it answers goes first, as a target that fails misses everything else too."""
        answers = self._answer(self._answers)
        if answers == "missed":
            return "not_ready"
        if answers == "undecided":
            return "not_enough_data"
        others = [self._answer(each) for each in self._others]
        if "missed" in others:
            return "degraded"
        return "not_enough_data" if "undecided" in others else "ready"

    def _verdict(self, state: State) -> Verdict:
        questions = [self._answers, *self._others]
        findings = tuple(each.finding(self._error, self._missed_error) for each in questions)
        error: float | None = None
        if state == "ready":
            error = max(each.error("met") for each in questions)
        elif state == "not_ready":
            error = len(questions) * self._answers.error("missed")
        elif state == "degraded":
            error = len(questions) * min(
                each.error("missed") for each in self._others if self._answer(each) == "missed"
            )
        return Verdict(state, self._why(state, findings), self._requests, self._not_counted, error, findings)

    def _why(self, state: State, findings: Sequence[Finding]) -> str:
        if state == "not_ready":
            found = findings[0]
            said = max(self._failures, key=lambda each: self._failures[each])
            return f"{found.bad} of {found.events} requests failed, most often: {said}"
        if state == "degraded":
            told = [f"{each.name}: {_seen(each)}" for each in findings if each.answer == "missed"]
            return "missed: " + "; ".join(told)
        if state == "ready":
            return "; ".join(f"{each.name}: {_seen(each)}" for each in findings)
        open_ = [each for each in findings if each.answer == "undecided"]
        late = f"; {self._not_counted} of {self._requests} were not counted" if self._not_counted else ""
        return f"after {self._requests} requests still open: {'; '.join(map(_undecided, open_))}{late}"


def reference(baseline: Sequence[Request], latency: Latency, q: float, material: float) -> Reference:
    """The quantile `q` of a baseline, slower by `material` (0.2: 20%). Its failures are the slowest of all.

    Either end of the quantile's interval is wrong with 2.5%, which adds to the error of what rests on it.
    Raises ValueError for a baseline of too few requests.
    """
    values: list[float] = []
    for each in baseline:
        value = each.ttft_s if latency == "ttft" else each.tpot_s
        if each.outcome in _BAD:
            values.append(math.inf)
        elif each.outcome in _ANSWERED and not each.warm_up and not each.cached and value is not None:
            values.append(value)
    (found,) = quantiles(values, (q,)) or (None,)
    if found is None or found.lower is None or found.upper is None or math.isinf(found.upper):
        needed = least_samples(q)
        why = f"are too few for its p{q * 100:g}" if len(values) < needed else f"fail too often for its p{q * 100:g}"
        raise ValueError(
            f"the baseline's {len(values)} requests with a {latency.upper()} {why}; keep one of {max(needed, 300)} or more"
        )
    return Reference(latency, q, found.lower * (1 + material), found.upper * (1 + material), found.count)


def least_samples(q: float) -> int:
    """The fewest samples whose quantile `q` has an interval with both ends."""
    return next(
        n for n in count(1) if None not in (quantiles(range(n), (q,))[0].lower, quantiles(range(n), (q,))[0].upper)
    )


def _answered(result: ProbeResult | None) -> Judged:
    if result is None or result.outcome in BAD or result.outcome is Outcome.REJECTED:
        return 1, 1, 1
    return (1, 0, 0) if result.outcome in ANSWERED else (0, 0, 0)


def _question(slo: Slo, use: JudgedStream) -> Question:
    def judge(result: ProbeResult | None) -> Judged:
        count, bad = count_events(slo, result) if result is not None else (0, 0)
        return count, bad, bad

    most, mean = max_events_per_probe(slo, use.max_tokens), mean_events_per_probe(slo, use.mean_tokens)
    return Question(slo.name, float(slo.error_budget_ratio), judge, most, min(mean, most))


def _slower(than: Reference) -> Callable[[ProbeResult | None], Judged]:
    def judge(result: ProbeResult | None) -> Judged:
        if result is None:
            return 0, 0, 0
        if result.outcome in BAD:
            return 1, 1, 1
        value = result.timeline.ttft_s if than.latency == "ttft" else result.timeline.tpot_s
        if value is None or result.outcome not in ANSWERED or result.warm_up or result.cached:
            return 0, 0, 0
        return 1, value > than.sure_s, value > than.slower_s

    return judge


def _seen(found: Finding) -> str:
    share = found.bad / found.events if found.events else 0.0
    return f"{found.bad} of {found.events} bad ({100 * share:.3g}%, allowed {100 * found.budget:.3g}%)"


def _undecided(found: Finding) -> str:
    more = f", some {found.more} more requests may show it" if found.more else ""
    return f"{found.name}: {_seen(found)}, in truth {100 * found.lower:.2g}% to {100 * found.upper:.2g}%{more}"
