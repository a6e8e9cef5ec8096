"""Up to which rate do the SLOs hold? The sweep as a machine without a clock and without a socket.

It is told what happens, and after each call `order` says what shall be done; a driver has only to compare it with the last one:

    sweep = Sweep(plan, at_s=now())
    while not isinstance(order := sweep.order, Finished):
        if isinstance(order, Run): ...      # send at order.rate_per_s, open loop, Poisson, whatever becomes of the answers
        else:                               # Estimate: send nothing more, cut what is in flight, then
            sweep.estimated(in_another_process(estimate, order.record), at_s=now())   # prober.experiment.estimate
        ...                                 # feed what happens; a tick every 0.25 s, the engine's page every 0.5 s

All times `at_s` are seconds of the one monotonic clock of the prober (that of `Timeline`, ÷ 1e9), and never go back. Calls for
requests that are not known, or after the end, are without effect. The driver owns pacing, tokens and connections; the machine
decides rates, stages and the end, and keeps the record.
"""

from collections import deque
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Literal

from prober.analysis.capacity import Capacity, binding
from prober.analysis.knee import at_least
from prober.experiment.guard import VOID, Guard, Trip
from prober.experiment.plan import Plan
from prober.experiment.record import UNJUDGED, Asked, Other, Phase, Record, Stage, entered, other_counts
from prober.measure.outcome import BAD, NEUTRAL, Outcome
from prober.measure.result import ProbeResult
from prober.measure.signals import Signals
from prober.slo.events import events
from prober.slo.objective import Slo

Reason = (
    Literal[
        "knee_passed",  # breaches in a stage: two, and more than the objective allows
        "breaching",  # four of the last eight breached
        "near_threshold",  # gentle: nine of ten latencies reach the share of a threshold that the plan names
        "highest_rate",  # the plan goes no further
        "sustained",  # the run at the knee is over
        "smoke_failed",  # the first requests failed: there is nothing to measure
        "failed",  # too many of a stage's requests
        "slow",  # a TTFT far above its threshold
        "saturated",  # completions fall behind arrivals, or as many in flight as the plan allows
        "prober_late",  # the prober itself spoilt results
        "page_lost",  # the guards were blind
        "retry_after",  # the target asks to be left alone
        "request_budget",
        "token_budget",
        "time_budget",
        "cost_budget",
        "guard",  # something outside the machine; `detail` names it
    ]
    | Trip
)
# The plan or something outside ended it: that it ended says nothing of the target.
UNREACHED: frozenset[Reason] = frozenset(
    {
        *("highest_rate", "sustained", "prober_late", "page_lost", "retry_after", "guard", "production_ttft"),
        *("request_budget", "token_budget", "time_budget", "cost_budget"),
    }
)

LAST, BREACHES = 8, 4  # the sending ends when so many of the last requests known are breaches
IN_A_STAGE = 2
GENTLE_LAST = 12
# Without a page there is no model to undo that short stages show a knee too high: after the ramp, a slower climb from below.
CLIMB_FROM, CLIMB, CLIMB_S = 0.55, 1.1, 8.0
REST_S = (3.0, 20.0)  # until next to nothing is in flight
GROWTH_S = (
    20.0  # in-flight that grows: over at least so long, as it does in any ramp while the first answers are written
)
ITL_SHARE = (
    3.0  # a request breaches an ITL objective with so many times the share of bad gaps that the objective allows
)


@dataclass(frozen=True, slots=True)
class Run:
    """Send at `rate_per_s` from now on, open loop, Poisson arrivals. A new number is a new stage."""

    stage: int
    phase: Phase
    rate_per_s: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """Send nothing, cut what is in flight; give `estimate(record)` to `estimated`. detail: words for `reason`."""

    reason: Reason
    detail: str
    record: Record


@dataclass(frozen=True, slots=True)
class Finished:
    """The end: send nothing, cut what is in flight.

    reason: why the sending ended (of a run at the knee: why the ramp before it ended is in `ramp_reason`)
    void: the target changed under the sweep, so that nothing can be said; capacities: one an SLO, empty if void
    """

    reason: Reason
    detail: str
    capacities: tuple[Capacity, ...]
    stages: tuple[Stage, ...]
    void: bool = False
    ramp_reason: Reason | None = None

    @property
    def binding(self) -> Capacity | None:
        """The SLO that gives way first."""
        return binding(self.capacities)


Order = Run | Estimate | Finished


@dataclass(slots=True)
class _Request:
    """One of the sweep's own while it grows. breached: known to be a breach of some SLO; counted: it is among the known."""

    id: str
    at_s: float
    prompt_tokens: int
    output_tokens: int
    stage: int
    first_s: float | None = None
    end_s: float | None = None
    known_s: float = 0.0
    tpot_s: float | None = None
    gap_s: float | None = None
    gap_most_s: float | None = None
    valid: bool = True
    failed: bool = False
    breached: bool = False
    counted: bool = False
    events: dict[str, tuple[int, int]] = field(default_factory=dict)

    def asked(self) -> Asked:
        return Asked(
            at_s=self.at_s,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            stage=self.stage,
            first_s=self.first_s,
            end_s=self.end_s,
            known_s=self.known_s,
            tpot_s=self.tpot_s,
            gap_s=self.gap_s,
            gap_most_s=self.gap_most_s,
            valid=self.valid,
            failed=self.failed,
            events=dict(self.events),
        )


class Sweep:
    """See the module. `order` is what shall be done now."""

    def __init__(self, plan: Plan, at_s: float) -> None:
        """A sweep that begins at `at_s` with its warm-up (or its first stage, if the plan has none)."""
        self._plan = plan
        thresholds = [
            each.threshold_s for each in plan.slos if each.signal in ("ttft", "ttft_answer") and each.threshold_s
        ]
        self._ttft_s = min(thresholds, default=None)
        self._first_token_says_all = all(each.signal == "ttft" for each in plan.slos)
        guards = (
            replace(plan.guards, waiting_share=plan.guards.waiting_share / 4) if plan.mode == "gentle" else plan.guards
        )
        self._guard = Guard(guards, self._ttft_s)
        self._now = self._began_s = at_s
        self._requests: dict[str, _Request] = {}
        self._open: dict[str, _Request] = {}
        self._readings: list[tuple[float, Signals]] = []
        self._others: list[Other] = []
        self._stages: list[Stage] = []
        self._breached: dict[int, int] = {}  # requests by stage
        self._last: deque[bool] = deque(maxlen=LAST)
        self._late: deque[bool] = deque(maxlen=20)
        self._tokens = 0
        self._cost = 0.0
        self._ramp_reason: Reason | None = None
        self._peak_per_s = 0.0  # rate that ended the ramp, where a climb follows
        self._capacities: tuple[Capacity, ...] = ()
        self._shares: deque[float] = deque(maxlen=GENTLE_LAST)
        phase: Phase = "warm_up" if plan.warm_up else "grid" if plan.mode == "grid" else "ramp"
        self._order: Order = self._begin(phase, plan.start_per_s if plan.warm_up else plan.rate(0) or plan.start_per_s)

    # -- what happens, as the driver sees it

    def sent(self, request_id: str, at_s: float, prompt_tokens: int, output_tokens: int) -> None:
        """A request of the sweep left; at_s: when it was due. Lengths as asked for."""
        if not isinstance(self._order, Run) or request_id in self._requests:
            return
        request = _Request(request_id, at_s, prompt_tokens, output_tokens, self._order.stage, known_s=at_s)
        self._requests[request_id] = self._open[request_id] = request
        self._tally(request.stage, sent=1)
        self._tokens += prompt_tokens + output_tokens
        budget = self._plan.budget
        self._cost += prompt_tokens * budget.prompt_token_cost + output_tokens * budget.output_token_cost
        if len(self._open) >= self._plan.guards.in_flight:
            self._stop("saturated", at_s, f"{len(self._open)} requests in flight")
        elif budget.requests is not None and len(self._requests) >= budget.requests:
            self._stop("request_budget", at_s, f"{len(self._requests)} requests")
        elif budget.tokens is not None and self._tokens >= budget.tokens:
            self._stop("token_budget", at_s, f"{self._tokens} tokens")
        elif budget.cost is not None and self._cost >= budget.cost:
            self._stop("cost_budget", at_s, f"{self._cost:g}")

    def first_token(self, request_id: str, at_s: float) -> None:
        """Its first content came. Without this call a TTFT is known when the result comes, and breaches are seen as early."""
        request = self._open.get(request_id)
        if request is None or request.first_s is not None:
            return
        request.first_s = request.known_s = at_s
        ttft_s = at_s - request.at_s
        for slo in self._plan.slos:
            if slo.signal == "ttft" and slo.threshold_s is not None:
                request.events[slo.name] = (1, int(ttft_s > slo.threshold_s))
        self._judge(request, at_s, final=self._first_token_says_all)

    def result(self, result: ProbeResult, at_s: float) -> None:
        """It is over, however it ended; shed requests too, whether or not they were `sent`."""
        if result.request_id not in self._requests and result.outcome is Outcome.SHED:
            self._stop("saturated", at_s, "a request was shed at the in-flight cap")
        request = self._open.pop(result.request_id, None)
        if request is None or not isinstance(self._order, Run):
            return  # what was cut when the sending ended says nothing more
        timeline = result.timeline
        request.end_s = at_s if timeline.end_ns is None else timeline.end_ns / 1e9
        request.known_s = at_s
        if timeline.first_ns is not None:
            request.first_s = timeline.first_ns / 1e9
        request.tpot_s = timeline.tpot_s
        if gaps := sorted(timeline.chunk_gaps_s):
            request.gap_s, request.gap_most_s = gaps[len(gaps) // 2], gaps[-1]
        request.failed = result.outcome in BAD
        request.valid = result.outcome not in NEUTRAL
        request.events = {slo.name: found for slo in self._plan.slos if (found := events(slo, result))[0]}
        self._tally(request.stage, answered=not request.failed and request.valid, failed=request.failed)
        self._judge(request, at_s, final=True)
        self._late.append(result.outcome is Outcome.INVALID)
        late, stage = sum(self._late), self._stages[request.stage]
        if late > 2 and late > self._plan.guards.late_ratio * len(self._late):
            self._stop("prober_late", at_s, f"{late} of the last {len(self._late)} results")
        elif stage.failed > 1 and stage.failed > self._plan.guards.failed_ratio * stage.sent:
            smoke = stage.phase == "warm_up" and not stage.answered
            self._stop("smoke_failed" if smoke else "failed", at_s, f"{stage.failed} of {stage.sent}: {result.detail}")

    def page(self, at_s: float, signals: Signals) -> None:
        """The engine's page was read. Readings from before the sweep make the load that was there better known."""
        if isinstance(self._order, Finished):
            return
        running = isinstance(self._order, Run)
        if running:
            self._readings.append((at_s, signals))
        rate = self._order.rate_per_s if isinstance(self._order, Run) else 0.0
        own = [(r.first_s, r.first_s - r.at_s) for r in self._requests.values() if r.first_s and r.first_s > at_s - 10]
        trip = self._guard.reading(at_s, signals, rate + self._others_per_s(), own)
        if trip is not None and (running or trip in VOID):
            self._stop(trip, at_s, "the engine's page says so")

    def other(self, at_s: float, prompt_tokens: int, output_tokens: int) -> None:
        """Somebody else's request came; only where all of them are known one by one."""
        if isinstance(self._order, Run):
            self._others.append(Other(at_s, prompt_tokens, output_tokens))

    def guard(self, name: str, at_s: float) -> None:
        """Something outside speaks against going on: an alert, a burn rate, a person."""
        self._stop("guard", at_s, name)

    def retry_after(self, at_s: float, seconds: float) -> None:
        """The target asks to be left alone for so long."""
        self._stop("retry_after", at_s, f"{seconds:g} s")

    def tick(self, at_s: float) -> None:
        """Time passes: stages end, pending requests become breaches."""
        self._now = max(self._now, at_s)
        if not isinstance(self._order, Run):
            return
        self._age(at_s)
        plan, last_s = self._plan, self._guard.last_s
        if plan.budget.seconds is not None and at_s - self._began_s >= plan.budget.seconds:
            self._stop("time_budget", at_s, f"{plan.budget.seconds:g} s")
        elif last_s is not None and at_s - max(last_s, self._stages[-1].began_s) > plan.guards.page_lost_s:
            self._stop("page_lost", at_s, f"no reading for {at_s - last_s:.1f} s")
        if isinstance(self._order, Run):
            self._end_of_stage(self._order, at_s)

    def estimated(self, capacities: tuple[Capacity, ...], at_s: float) -> None:
        """The answer to `Estimate`."""
        before = self._order
        if not isinstance(before, Estimate):
            return
        self._capacities = capacities
        found = binding(capacities)
        rate = (found.estimate or 0.0) - self._others_per_s() if found else 0.0
        if self._plan.sustain_s and self._ramp_reason is None and before.record.reached and rate > 0:
            self._ramp_reason = before.reason
            self._last.clear()
            self._order = self._begin("sustain", rate, at_s)
            return
        self._finish(before.reason, before.detail)

    @property
    def order(self) -> Order:
        """What shall be done now; the same value until something changes."""
        return self._order

    @property
    def stages(self) -> tuple[Stage, ...]:
        """As they stand, for those who watch."""
        return tuple(self._stages)

    # -- requests

    def _judge(self, request: _Request, at_s: float, *, final: bool) -> None:
        """What is known of it now may be a breach, or harm."""
        stage = self._stages[request.stage]
        if stage.phase in UNJUDGED or not request.valid:
            return
        now = stage.phase == self._stages[-1].phase  # what comes late of a ramp speaks against no climb
        if not request.breached and (request.failed or any(self._breaches(slo, request) for slo in self._plan.slos)):
            request.breached = True
            self._breached[request.stage] = self._breached.get(request.stage, 0) + 1
            if now:
                self._last.append(True)
        elif now and final and not request.counted and not request.breached:
            self._last.append(False)
        if final and not request.counted:
            self._shares.append(self._share(request, at_s))
            request.counted = True
        ttft_s = (at_s if request.first_s is None else request.first_s) - request.at_s
        if self._ttft_s and not request.failed and ttft_s > self._plan.guards.ttft_factor * self._ttft_s:
            self._stop("slow", at_s, f"a TTFT of {ttft_s:.3g} s or more")
        if now:
            self._decide(stage, at_s)

    def _breaches(self, slo: Slo, request: _Request) -> bool:
        count, bad = request.events.get(slo.name, (0, 0))
        return bad > (ITL_SHARE * float(slo.budget) * count if slo.signal == "itl" else 0)

    def _share(self, request: _Request, at_s: float) -> float:
        """The highest of its latencies, each as a share of its threshold."""
        ttft_s = (at_s if request.first_s is None else request.first_s) - request.at_s
        e2e_s = (at_s if request.end_s is None else request.end_s) - request.at_s
        value = {"ttft": ttft_s, "ttft_answer": ttft_s, "e2e": e2e_s, "tpot": request.tpot_s or 0.0}
        return max(
            (value.get(each.signal, 0.0) / each.threshold_s for each in self._plan.slos if each.threshold_s),
            default=0.0,
        )

    def _age(self, at_s: float) -> None:
        """What is pending for longer than its threshold is a breach already."""
        for request in list(self._open.values()):
            age_s = at_s - request.at_s
            request.known_s = at_s
            late = False
            for slo in self._plan.slos:
                waits = slo.signal == "e2e" or (slo.signal == "ttft" and request.first_s is None)
                if waits and slo.threshold_s is not None and age_s > slo.threshold_s:
                    request.events[slo.name] = (1, 1)
                    late = True
            if late:
                self._judge(request, at_s, final=False)

    # -- stages

    def _begin(self, phase: Phase, rate_per_s: float, at_s: float | None = None) -> Run:
        began_s = self._now if at_s is None else at_s
        number = len(self._stages)
        self._stages.append(Stage(number, phase, rate_per_s, began_s, began_s))
        if phase != "warm_up" and number <= 1:
            self._guard.began()
        return Run(number, phase, rate_per_s)

    def _tally(self, number: int, *, sent: int = 0, answered: int = 0, failed: int = 0) -> None:
        stage = self._stages[number]
        self._stages[number] = replace(
            stage, sent=stage.sent + sent, answered=stage.answered + answered, failed=stage.failed + failed
        )

    def _end_of_stage(self, run: Run, at_s: float) -> None:
        """Go on to the next stage, or end, if this one has lasted long enough to tell."""
        stage = self._stages[run.stage]
        lasted_s = at_s - stage.began_s
        self._stages[run.stage] = replace(stage, ended_s=at_s)
        if run.phase == "warm_up":
            warm = sum(each.first_s is not None or each.end_s is not None for each in self._requests.values())
            if lasted_s >= self._plan.warm_up_s and not warm:
                self._stop("smoke_failed", at_s, f"no answer within {lasted_s:.0f} s")
            elif warm >= self._plan.warm_up or lasted_s >= self._plan.warm_up_s:
                self._advance(at_s)
            return
        if self._near(at_s):
            self._stop("near_threshold", at_s, f"{self._plan.gentle_share:.0%} of a threshold")
        elif self._falls_behind(stage, at_s):
            self._stop("saturated", at_s, "completions fall behind arrivals")
        elif run.phase == "sustain":
            if lasted_s >= self._plan.sustain_s:
                self._stop("sustained", at_s, f"{lasted_s:.0f} s")
        elif run.phase in ("rest", "climb"):
            self._climb(run, lasted_s, at_s)
        elif lasted_s >= self._plan.stage_length_s or self._clear(stage, lasted_s):
            self._advance(at_s)

    def _climb(self, run: Run, lasted_s: float, at_s: float) -> None:
        """After the ramp of a target without a page: from well below where it ended, once it is quiet."""
        if run.phase == "climb":
            if lasted_s >= CLIMB_S:
                self._order = self._begin("climb", run.rate_per_s * CLIMB, at_s)
        elif lasted_s >= REST_S[0] and (lasted_s >= REST_S[1] or len(self._open) <= 2):
            self._order = self._begin("climb", max(self._plan.start_per_s, CLIMB_FROM * self._peak_per_s), at_s)

    def _advance(self, at_s: float) -> None:
        """The next rate of the plan."""
        number = sum(each.phase in ("ramp", "grid") for each in self._stages)
        rate = self._plan.rate(number)
        if rate is None:
            self._stop("highest_rate", at_s, f"{self._stages[-1].rate_per_s:g}/s")
        else:
            self._order = self._begin("grid" if self._plan.mode == "grid" else "ramp", rate, at_s)

    def _decide(self, stage: Stage, at_s: float) -> None:
        """Enough breaches end the sending."""
        breached = self._breached.get(stage.number, 0)
        if sum(self._last) >= BREACHES:
            self._stop("breaching", at_s, f"{sum(self._last)} of the last {len(self._last)} requests")
        elif stage.phase in ("ramp", "climb") and breached >= IN_A_STAGE and self._probably(breached, stage.sent):
            if (
                stage.phase == "ramp"
                and self._plan.mode == "adaptive"
                and not self._readings
                and isinstance(self._order, Run)
            ):
                self._peak_per_s = stage.rate_per_s
                self._last.clear()
                self._order = self._begin("rest", self._plan.start_per_s, at_s)
            else:
                self._stop("knee_passed", at_s, f"{breached} breaches at {stage.rate_per_s:.3g}/s")
        elif stage.phase == "grid" and breached >= IN_A_STAGE and self._surely(breached, stage.sent):
            self._stop("knee_passed", at_s, f"{breached} of {stage.sent} requests breach at {stage.rate_per_s:.3g}/s")

    def _probably(self, breached: int, sent: int) -> bool:
        """More than the strictest objective allows, at odds of twenty to one; gentle asks for no odds.

        Two of hundreds are what the objective allows. To stop at them tells nothing of a target that breaches a little at any
        rate (prompts of very different lengths).
        """
        allowed = min(float(each.budget) for each in self._plan.slos)
        return self._plan.mode == "gentle" or at_least(breached, sent, allowed) < 0.05

    def _surely(self, breached: int, sent: int) -> bool:
        """More than the strictest objective allows, at odds of a thousand to one."""
        return at_least(breached, sent, min(float(each.budget) for each in self._plan.slos)) < 1e-3

    def _near(self, at_s: float) -> bool:
        """Gentle: of the last dozen known and of those that wait too long for it, two or more reach the share."""
        if self._plan.mode != "gentle":
            return False
        share = self._plan.gentle_share
        waiting = sum(not each.counted and self._share(each, at_s) >= share for each in self._open.values())
        return sum(each >= share for each in self._shares) + waiting >= 2

    def _clear(self, stage: Stage, lasted_s: float) -> bool:
        """Half a stage is enough where nearly all of it is answered already, and far below every threshold."""
        if stage.phase != "ramp" or lasted_s < self._plan.stage_length_s / 2 or stage.sent < LAST:
            return False
        signals = self._readings[-1][1] if self._readings else None
        if signals is not None and signals.requests_waiting:
            return False
        return stage.answered >= 0.8 * stage.sent and max(self._shares, default=1.0) < 0.25

    def _falls_behind(self, stage: Stage, at_s: float) -> bool:
        """In the second half of a long stage: arrivals that exceed completions by more than chance, in flight ever more."""
        middle_s = (stage.began_s + at_s) / 2
        if at_s - middle_s < GROWTH_S:
            return False
        came = sum(each.at_s >= middle_s for each in self._requests.values())
        gone = sum(each.end_s is not None and each.end_s >= middle_s for each in self._requests.values())
        return gone < 0.8 * came and came - gone > 4 * sqrt(came)

    def _others_per_s(self) -> float:
        """Load that was there, roughly, for guards and for the run at the knee."""
        known = [(at, n) for at, s in (self._readings[:1] + self._readings[-1:]) if (n := entered(s)) is not None]
        if len(known) < 2 or known[1][0] - known[0][0] < 1.0:
            return 0.0
        own = sum(known[0][0] <= each.at_s < known[1][0] for each in self._requests.values())
        return max(0.0, (known[1][1] - known[0][1] - own) / (known[1][0] - known[0][0]))

    # -- the end

    def _stop(self, reason: Reason, at_s: float, detail: str) -> None:
        """The sending ends; the first reason is the one that stands, unless what was measured is gone."""
        if isinstance(self._order, Finished):
            return
        if reason in VOID:
            self._finish(reason, detail, void=True)
        elif isinstance(self._order, Run):
            self._stages[-1] = replace(self._stages[-1], ended_s=at_s)
            if reason == "smoke_failed":
                self._capacities = tuple(Capacity(each.name, "not_enough_data") for each in self._plan.slos)
                self._finish(reason, detail)
            else:
                self._order = Estimate(reason, detail, self._record(reached=reason not in UNREACHED))

    def _finish(self, reason: Reason, detail: str, *, void: bool = False) -> None:
        capacities = () if void else self._capacities
        self._order = Finished(reason, detail, capacities, self._settled(), void, self._ramp_reason)

    def _record(self, *, reached: bool) -> Record:
        """Everything seen so far."""
        asked = tuple(each.asked() for each in sorted(self._requests.values(), key=lambda each: each.at_s))
        others = tuple(self._others) if self._others else None
        return Record(
            self._plan.slos,
            asked,
            self._settled(),
            tuple(self._readings),
            others,
            self._plan.lengths,
            reached or self._ramp_reason is not None,
        )

    def _settled(self) -> tuple[Stage, ...]:
        """The stages with their events, and the load that was there in each."""
        found: dict[int, dict[str, tuple[int, int]]] = {each.number: {} for each in self._stages}
        for request in self._requests.values():
            for name, (count, bad) in request.events.items() if request.valid else ():
                before = found[request.stage].get(name, (0, 0))
                found[request.stage][name] = (before[0] + count, before[1] + bad)
        whole = Record(
            self._plan.slos, tuple(each.asked() for each in self._requests.values()), (), tuple(self._readings)
        )
        counts = other_counts(whole)
        stages = []
        for stage in self._stages:
            within = [each for each in counts if each[0] >= stage.began_s and each[1] <= stage.ended_s]
            span_s = sum(end - begin for begin, end, _ in within)
            rate = max(0.0, sum(count for _, _, count in within) / span_s) if span_s > 0 else None
            stages.append(replace(stage, events=found[stage.number], other_per_s=rate))
        return tuple(stages)
