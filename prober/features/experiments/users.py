"""Search for the largest number of users at which every SLO holds: which number to try next, and what its requests prove.

Numbers are doubled while a few clean requests of each user show no breach. Then the gap between the largest number that holds and the
smallest that does not is halved, until it is `MAX_GAP` or one user.

The evidence is from `statistics.sequential_test`, with an observation per request. Users who wait in the same queue are slow
together, so their requests are dependent. All counts are divided by the design effect (Rao and Scott, "A simple
method for the analysis of clustered binary data", Biometrics 48, 1992): the variance of the sums over rounds ÷ that of independent
observations, where a round is as long as a mean user takes from one request to the next. Without bad requests the effect is invisible,
so it is at least `MIN_EFFECT`, and nothing holds before `MIN_ROUNDS` rounds, or fails before `MIN_FAILING_ROUNDS`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from statistics import fmean

from prober.features.experiments.gate import MOST_PER_LEAST
from prober.measure.objective import Slo
from prober.measure.result import ProbeResult
from prober.results.capacity import MIN_RATE_S, Capacity, RateEvents, Verdict, undecided_events
from prober.results.judgement import Question, slo_question, together
from prober.statistics.sequential_test import ERROR, Evidence, Observations, evidence, min_observations
from prober.workload.workloads import Mix, Workload

MAX_GAP = 0.1  # of the number that holds
# Makes a wrong "holds" at twice the budget rare: `bench/users.py`.
MIN_EFFECT, MIN_ROUNDS, MIN_FAILING_ROUNDS = 2.0, 30.0, 8.0
CLEAR_REQUESTS, CLEAR_ROUNDS = 8, 2.0  # without a breach; then the number is doubled


class UserLevel:
    """A number of users, and the evidence from their requests on each SLO.

    samples: number of counted requests; times_s: due times of those judged in this run
    is_clear: a few requests of each user showed no breach
    harm: why it had to end before a decision; "" if it did not
    evidence: by SLO name; a decision stays
    is_over: decided, or more requests would hardly decide
    """

    def __init__(self, users: int, slos: Sequence[Slo], workload: Workload | Mix) -> None:
        self.users, self._slos, self._workload = users, slos, workload
        self.samples = 0
        self.evidence: dict[str, Evidence] = {slo.name: "undecided" for slo in slos}
        self.is_clear = self.is_over = False
        self.harm = ""
        self.begin()

    @property
    def state(self) -> Evidence:
        """Evidence on all SLOs together."""
        return together(self.evidence.values())

    def begin(self) -> None:
        """Begin a run with this number of users; its evidence replaces that of an earlier run."""
        max_tokens = max(part.max_output_tokens for part, _ in self._workload.parts)
        self.times_s: list[float] = []
        self.events: dict[str, RateEvents] = {}
        self._questions: list[tuple[Question, list[tuple[float, float]]]] = [
            (slo_question(slo, max_tokens, max_tokens), [])  # with (time in s, observation) per request
            for slo in self._slos
        ]

    def judge(self, results: Sequence[ProbeResult], overdue: Mapping[str, int]) -> None:
        """Judge the next results of a run with this number of users, in order of due times.

        overdue: SLO name → requests in flight that have already breached it
        """
        for result in results:
            at_s = result.timeline.intended_ns / 1e9
            self.times_s.append(at_s)
            for question, timed in self._questions:
                if (values := question.values(result)) is not None:
                    timed.append((at_s, values[0]))
        if not self.times_s or self.times_s[-1] <= self.times_s[0]:
            return
        count, span_s = len(self.times_s), self.times_s[-1] - self.times_s[0]
        rounds = count / self.users
        is_settled = rounds >= MIN_ROUNDS and span_s >= MIN_RATE_S
        breaches, is_spent = 0, True
        for question, timed in self._questions:
            name, budget, late = question.name, question.budget, overdue.get(question.name, 0)
            shares = Observations([value for _, value in timed] + [1.0] * late)
            effect = design_effect(timed, span_s / rounds)
            effective = Observations({value: number / effect for value, number in shares.counts.items()})
            self.events[name] = RateEvents(self.users, effective, question.events + late, round(question.bad) + late)
            breaches += self.events[name].bad
            if self.evidence[name] != "undecided":
                continue
            shown = evidence(effective, budget, fails_error=ERROR / len(self._slos))
            if (shown == "fails" and rounds >= MIN_FAILING_ROUNDS) or (shown == "holds" and is_settled):
                self.evidence[name] = shown
            else:
                is_spent &= is_settled and effective.count >= MOST_PER_LEAST * min_observations(budget, ERROR)
        self.is_clear = not breaches and count >= max(CLEAR_REQUESTS, CLEAR_ROUNDS * self.users)
        self.is_over = self.state != "undecided" or is_spent


def design_effect(values: Sequence[tuple[float, float]], round_s: float) -> float:
    """Variance of sums of (time in s, value) over rounds of `round_s` ÷ that of independent values; at least `MIN_EFFECT`."""
    mean = fmean(value for _, value in values) if values else 0.0
    within = sum((value - mean) ** 2 for _, value in values)
    sums = (
        sum(value - mean for _, value in of_round)
        for _, of_round in groupby(values, key=lambda timed: timed[0] // round_s)
    )
    return max(MIN_EFFECT, sum(total**2 for total in sums) / within if within else 0.0)


class UserSearch:
    """Searches for the most users who fit: doubles until one number fails, then bisects.

    levels: by number of users
    """

    def __init__(self, slos: Sequence[Slo], workload: Workload | Mix, most: int) -> None:
        self._slos, self._workload, self._most = slos, workload, most
        self.levels: dict[int, UserLevel] = {}

    def next(self) -> tuple[UserLevel, bool] | None:
        """(level to run, True if it ends once it is clear); None at the end of the search."""
        levels = [self.levels[users] for users in sorted(self.levels)]
        barred = next((level.users for level in levels if level.state == "fails" or level.harm), None)
        below = [level for level in levels if barred is None or level.users < barred]
        good = max((level.users for level in below if level.is_clear or level.state == "holds"), default=0)
        doubtful = [level.users for level in below if level.users > good]
        if barred is None and not doubtful and good < self._most:
            return self._level(min(max(1, 2 * good), self._most)), True
        above = doubtful[0] if doubtful else barred
        if above is not None and (between := _between(good, above)) is not None:
            return self._level(between), False
        if good and self.levels[good].state != "holds":
            return self._level(good), False
        if doubtful and barred is None and doubtful[-1] < self._most:
            return self._level(min(self._most, 2 * doubtful[-1])), False
        if doubtful and (between := _between(doubtful[-1], barred or self._most)) is not None:
            return self._level(between), False
        return None

    def _level(self, users: int) -> UserLevel:
        return self.levels.setdefault(users, UserLevel(users, self._slos, self._workload))

    def capacities(self) -> tuple[Capacity, ...]:
        """The number of users that each SLO allows."""
        return tuple(map(self._capacity, self._slos))

    def _capacity(self, slo: Slo) -> Capacity:
        shown = {users: level.evidence[slo.name] for users, level in self.levels.items()}
        upper = min((float(users) for users in shown if shown[users] == "fails"), default=None)
        holding = [float(users) for users in shown if shown[users] == "holds" and (upper is None or users < upper)]
        lower = max(holding, default=None)
        events = [level.events[slo.name] for level in self.levels.values() if slo.name in level.events]
        samples = sum(level.samples for level in self.levels.values())
        is_shown = lower is not None or upper is not None
        undecided = None if is_shown else undecided_events(events, float(slo.error_budget_ratio))
        if undecided is not None and undecided.needed is not None:
            level = self.levels[round(undecided.rate_per_s)]
            of_rounds = math.ceil(MIN_ROUNDS * level.users * undecided.events / len(level.times_s))
            undecided = replace(undecided, needed=max(undecided.needed, of_rounds))
        verdict: Verdict = "below" if lower is None else "not_reached" if upper is None else "found"
        return Capacity(
            *(slo.name, verdict if is_shown else "not_enough_data"),
            *(lower, (lower * upper) ** 0.5 if lower and upper else None, upper),
            samples=samples,
            evidence=undecided,
            users=True,
        )


def _between(low: int, high: int) -> int | None:
    """The middle of two numbers of users; None if the gap is small enough."""
    return (low + high) // 2 if high - low > max(1.0, MAX_GAP * low) else None
