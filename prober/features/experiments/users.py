"""Search for the largest number of users at which every SLO holds: which number to try next, and what its requests prove.

Numbers are multiplied by `GROWTH` while two clean requests of each user show no breach. Then the gap between the largest number that
holds and the smallest that does not is halved (by their ratio), until it is `MAX_GAP` or one user.

The evidence is from `statistics.sequential_test`, with an observation per request. Users who wait in the same queue are slow
together, so their requests are dependent. All counts are divided by the design effect (Rao and Scott, "A simple
method for the analysis of clustered binary data", Biometrics 48, 1992): the variance of the sums over rounds ÷ that of independent
observations, where a round is as long as a mean user takes from one request to the next. Without bad requests their effect is
invisible, so it is at least `MIN_EFFECT`, and before `ENOUGH_ROUNDS` rounds at least that of the slowest requests, as many as the
budget allows to be bad. Nothing is decided before `MIN_ROUNDS` rounds.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean

from prober.measure.objective import Slo
from prober.measure.result import ProbeResult
from prober.results.capacity import MIN_RATE_S, Capacity, RateEvents, Verdict, undecided_events
from prober.results.judgement import Question, slo_question, together
from prober.statistics.sequential_test import ERROR, Evidence, Observations, evidence
from prober.workload.workloads import Mix, Workload

GROWTH = 4
MAX_GAP = 0.45  # of the number that holds
# Make a wrong "holds" at twice the budget rare: `bench/users.py`.
MIN_EFFECT, MIN_ROUNDS, MIN_SLOW, ENOUGH_ROUNDS = 2.0, 6.0, 5, 30.0
CLEAR_ROUNDS = 2.0  # without a breach; then larger numbers are tried


class UserLevel:
    """A number of users, and the evidence from their requests on each SLO.

    samples: number of counted requests; waits: (due time, TTFT or E2E), in s, of those judged in this run
    is_clear: two requests of each user showed no breach
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

    def stop(self, harm: str) -> None:
        """End it for harm, beside which fewer rounds show that an SLO fails."""
        self.harm = harm
        if len(self.waits) >= self.users:
            self.evidence |= {name: shown for name, shown in self._shown.items() if shown == "fails"}

    def begin(self) -> None:
        """Begin a run with this number of users; its evidence replaces that of an earlier run."""
        max_tokens = max(part.max_output_tokens for part, _ in self._workload.parts)
        self.waits: list[tuple[float, float]] = []
        self.events: dict[str, RateEvents] = {}
        self._shown: dict[str, Evidence] = {}
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
            wait_s = result.timeline.ttft_s or result.timeline.e2e_s
            self.waits.append((at_s, math.inf if wait_s is None else wait_s))
            for question, timed in self._questions:
                if (values := question.values(result)) is not None:
                    timed.append((at_s, values[0]))
        count, span_s = len(self.waits), self.waits[-1][0] - self.waits[0][0] if self.waits else 0.0
        if not span_s:
            return
        rounds = count / self.users
        breaches, is_spent = 0, True
        slowest_s = sorted((wait_s for _, wait_s in self.waits), reverse=True)
        for question, timed in self._questions:
            name, budget, late = question.name, question.budget, overdue.get(question.name, 0)
            shares = Observations([value for _, value in timed] + [1.0] * late)
            limit_s = slowest_s[min(count - 1, max(MIN_SLOW, int(budget * count)))]
            slow = [(at_s, float(wait_s > limit_s)) for at_s, wait_s in self.waits]
            shown_by = (timed,) if rounds >= ENOUGH_ROUNDS else (timed, slow)
            effect = max(design_effect(values, span_s / rounds) for values in shown_by)
            effective = Observations({value: number / effect for value, number in shares.counts.items()})
            self.events[name] = RateEvents(self.users, effective, question.events + late, round(question.bad) + late)
            breaches += self.events[name].bad
            if self.evidence[name] != "undecided":
                continue
            shown = self._shown[name] = evidence(effective, budget, fails_error=ERROR / len(self._slos))
            if shown == "fails" or span_s >= MIN_RATE_S:
                self.evidence[name] = shown if rounds >= MIN_ROUNDS else "undecided"
            is_spent &= rounds >= MIN_ROUNDS and effective.count >= question.least(ERROR)
        self.is_clear = not breaches and rounds >= CLEAR_ROUNDS
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
    """Searches for the most users who fit: multiplies until one number is not clear, then bisects.

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
        holding = (level.users for level in below if level.state == "holds" or (level.is_clear and not level.is_over))
        good = max(holding, default=0)
        doubtful = [level.users for level in below if level.users > good]
        above = doubtful[0] if doubtful else barred
        if above is None and good < self._most:
            return self._level(min(max(1, GROWTH * good), self._most)), True
        if above is not None and (between := _between(good, above)) is not None:
            return self._level(between), True
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
        verdict: Verdict = "below" if lower is None else "not_reached" if upper is None else "found"
        return Capacity(
            *(slo.name, verdict if is_shown else "not_enough_data"),
            *(lower, (lower * upper) ** 0.5 if lower and upper else None, upper),
            samples=samples,
            evidence=undecided,
            users=True,
        )


def _between(low: int, high: int) -> int | None:
    """The middle of two numbers of users by ratio; None if the gap is small enough."""
    return max(low + 1, math.isqrt(low * high)) if high - low > max(1.0, MAX_GAP * low) else None
