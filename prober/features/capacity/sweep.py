"""Up to which rate do the SLOs hold? The sweep as a machine without a clock and without a socket.

It is told what happens, and after each call `order` says what shall be done; a driver has only to compare it with the last one:

    sweep = Sweep(plan, at_s=now())
    while not isinstance(order := sweep.order, Finished):
        if isinstance(order, Run): ...      # send at order.rate_per_s, open loop, Poisson, whatever becomes of the answers
        else:                               # Estimate: send nothing more, cut what is in flight, then
            sweep.estimated(in_another_process(estimate, order.record), at_s=now())   # prober.features.capacity.estimate
        ...                                 # feed what happens; a tick every 0.25 s, the engine's page every 0.5 s

All times `at_s` are seconds of the one monotonic clock of the prober (that of `Timeline`, ÷ 1e9), and never go back. Calls for
requests that are not known, or after the end, are without effect. The driver owns pacing, tokens and connections; the machine
decides rates, stages and the end, and keeps the record.
"""

from collections import deque
from dataclasses import replace
from itertools import islice
from math import log, sqrt
from statistics import median

from prober.features.capacity.actions import UNREACHED, Action, Estimate, Finished, Reason, Run
from prober.features.capacity.knee import at_least
from prober.features.capacity.request_log import RequestLog
from prober.features.capacity.request_record import RequestRecord
from prober.features.capacity.stop_conditions import VOID, StopConditions
from prober.features.capacity.sweep_plan import Plan, Spent
from prober.features.capacity.sweep_record import UNJUDGED, Phase, Stage, observed
from prober.measure.engine_signals import EngineSignals
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.results.capacity import ERROR, Capacity, binding
from prober.simulation.request import Request
from prober.statistics.sequential_test import log_evidence_below, min_observations

# The sending ends when half of so many last requests known are breaches. A grid is walked to see them: one burst does not end it.
LAST, LAST_OF_GRID, REACH = 8, 32, 500  # reach: how far back they are looked for
QUIET = 2  # requests in flight that are next to nothing
IN_A_STAGE = 2
# A ramp goes on while so many breaches may be chance where the objective holds: it is asked at each stage, and each stage tells more.
ODDS, ODDS_BLIND = 0.02, 0.05
PAGE_S, PAGE_NEAR_S = 0.5, 0.1
GENTLE_LAST = 12
# Without a page there is no model to undo that short stages show a knee too high: after the ramp, a slower climb from below.
CLIMB_FROM, CLIMB, CLIMB_S = 0.55, 1.1, 8.0
REST_S = (3.0, 20.0)  # until next to nothing is in flight
# In-flight that grows: over at least so long, as it does in any ramp while the first answers are written.
GROWTH_S = 20.0
STAYS = 3  # times the requests that show the objective at best: so long the highest rate is held for that
# The warm-up ends early where the engine has finished so many requests a rank since its start, and so many more answers agree.
WARM_AFTER, WARM_ANSWERS, WARM_FACTOR = 50, 5, 2.0


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
        self._guard = StopConditions(guards, self._ttft_s)
        self._now = self._began_s = at_s
        self._account = RequestLog()
        self._breached: dict[int, int] = {}  # requests by stage
        self._last = LAST_OF_GRID if plan.mode == "grid" else LAST
        self._late: deque[bool] = deque(maxlen=20)
        self._ramp_reason: Reason | None = None
        self._peak_per_s = 0.0  # rate that ended the ramp, where a climb follows
        self._capacities: tuple[Capacity, ...] = ()
        self._shares: deque[float] = deque(maxlen=GENTLE_LAST)
        phase: Phase = "warm_up" if plan.warm_up else "grid" if plan.mode == "grid" else "ramp"
        self._order: Action = self._begin(
            phase, plan.min_rate_per_s if plan.warm_up else plan.rate(0) or plan.min_rate_per_s
        )

    # -- what happens, as the driver sees it

    def sent(self, request_id: str, at_s: float, prompt_tokens: int, output_tokens: int) -> None:
        """A request of the sweep left; at_s: when it was due. Lengths as asked for."""
        if not isinstance(self._order, Run) or request_id in self._account.requests:
            return
        account = self._account
        record = RequestRecord(at_s, prompt_tokens, output_tokens, self._order.stage, known_s=at_s)
        account.sent(request_id, record)
        share, limit = self._plan.budget.used(len(account.requests), account.prompt_tokens, account.output_tokens)
        if len(self._account.open) >= self._plan.guards.max_in_flight:
            self._stop("saturated", at_s, f"{len(self._account.open)} requests in flight")
        elif share >= 1:
            self.spent(limit, at_s)

    def spent(self, limit: Spent, at_s: float, why: str = "") -> None:
        """The next request does not fit in the budget any more; why: which, if it is not the plan's own."""
        tokens = self._account.prompt_tokens + self._account.output_tokens
        self._stop(limit, at_s, f"{len(self._account.requests)} requests, {tokens} tokens{why}")

    def first_token(self, request_id: str, at_s: float) -> None:
        """Its first content came. Without this call a TTFT is known when the result comes, and breaches are seen as early."""
        request = self._account.open.get(request_id)
        if request is None or request.first_s is not None:
            return
        request.first_token(at_s, self._plan.slos)
        self._judge(request, at_s, final=self._first_token_says_all)

    def result(self, result: ProbeResult, at_s: float) -> None:
        """It is over, however it ended; shed requests too, whether or not they were `sent`."""
        if result.request_id not in self._account.requests and result.outcome is Outcome.SHED:
            self._stop("saturated", at_s, "a request was shed at the in-flight cap")
        request = self._account.open.pop(result.request_id, None)
        if request is None or not isinstance(self._order, Run):
            return  # what was cut when the sending ended says nothing more
        request.finished(result, at_s, self._plan.slos)
        self._account.count(request.stage, answered=not request.failed and request.valid, failed=request.failed)
        self._judge(request, at_s, final=True)
        self._late.append(result.outcome is Outcome.INVALID)
        late, stage = sum(self._late), self._account.stages[request.stage]
        if late > 2 and late > self._plan.guards.late_ratio * len(self._late):
            self._stop("prober_late", at_s, f"{late} of the last {len(self._late)} results")
        elif stage.failed > 1 and stage.failed > self._plan.guards.failed_ratio * stage.sent:
            smoke = stage.phase == "warm_up" and not stage.answered
            self._stop("smoke_failed" if smoke else "failed", at_s, f"{stage.failed} of {stage.sent}: {result.detail}")

    def page(self, at_s: float, signals: EngineSignals) -> None:
        """The engine's page was read. Readings from before the sweep make the load that was there better known."""
        if isinstance(self._order, Finished):
            return
        running = isinstance(self._order, Run)
        if running:
            self._account.readings.append((at_s, signals))
        rate = self._order.rate_per_s if isinstance(self._order, Run) else 0.0
        own = [
            (r.first_s, r.first_s - r.at_s)
            for r in self._account.requests.values()
            if r.first_s and r.first_s > at_s - 10
        ]
        trip = self._guard.reading(at_s, signals, rate + self._account.others_per_s(), own)
        if trip is not None and (running or trip in VOID):
            self._stop(trip, at_s, "the engine's page says so")

    def other(self, at_s: float, prompt_tokens: int, output_tokens: int) -> None:
        """Somebody else's request came; only where all of them are known one by one."""
        if isinstance(self._order, Run):
            self._account.others.append(Request(at_s, prompt_tokens, output_tokens, background=True))

    def demand(self, per_s: float) -> None:
        """Somebody else counted the load that was there before the sweep; of use where the page does not count requests."""
        self._account.demand_per_s = per_s

    def guard(self, name: str, at_s: float) -> None:
        """Something outside speaks against going on: an alert, a burn rate, a person."""
        self._stop("guard", at_s, name)

    def lease_lost(self, at_s: float) -> None:
        """Another prober may sweep from now on."""
        self._stop("lease_lost", at_s, "another prober may sweep now")

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
        if plan.budget.time_s is not None and at_s - self._began_s >= plan.budget.time_s:
            self._stop("time_budget", at_s, f"{plan.budget.time_s:g} s")
        elif last_s is not None and at_s - max(last_s, self._account.stages[-1].began_s) > plan.guards.page_lost_s:
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
        rate = (found.estimate or 0.0) - self._account.others_per_s() if found else 0.0
        if self._plan.sustain_s and self._ramp_reason is None and before.record.reached and rate > 0:
            self._ramp_reason = before.reason
            self._order = self._begin("sustain", rate, at_s)
            return
        self._finish(before.reason, before.detail)

    @property
    def order(self) -> Action:
        """What shall be done now; the same value until something changes."""
        return self._order

    @property
    def page_every_s(self) -> float:
        """How often the page is to be read: closely once something waits or breaches, for a limit shows only while it binds."""
        readings, stages = self._account.readings, self._account.stages
        waits = bool(readings and readings[-1][1].requests_waiting)
        return PAGE_NEAR_S if waits or self._breached.get(len(stages) - 1) else PAGE_S

    @property
    def stages(self) -> tuple[Stage, ...]:
        """As they stand, for those who watch."""
        return tuple(self._account.stages)

    # -- requests

    def _judge(self, request: RequestRecord, at_s: float, *, final: bool) -> None:
        """What is known of it now may be a breach, or harm."""
        stage = self._account.stages[request.stage]
        if stage.phase in UNJUDGED or not request.valid:
            return
        now = stage.phase == self._account.stages[-1].phase  # what comes late of a ramp speaks against no climb
        if not request.breached and (request.failed or any(request.breaches(slo) for slo in self._plan.slos)):
            request.breached = True
            self._breached[request.stage] = self._breached.get(request.stage, 0) + 1
        if final and not request.counted:
            self._shares.append(request.max_threshold_share(at_s, self._plan.slos))
            request.counted = True
        ttft_s = request.waited_s(at_s)
        if self._ttft_s and not request.failed and ttft_s > self._plan.guards.ttft_factor * self._ttft_s:
            self._stop("slow", at_s, f"a TTFT of {ttft_s:.3g} s or more")
        if now:
            self._decide(stage, at_s)

    def _age(self, at_s: float) -> None:
        """What is pending for longer than its threshold is a breach already."""
        for request in list(self._account.open.values()):
            if request.check_overdue(at_s, self._plan.slos):
                self._judge(request, at_s, final=False)

    # -- stages

    def _begin(self, phase: Phase, rate_per_s: float, at_s: float | None = None) -> Run:
        began_s = self._now if at_s is None else at_s
        number = len(self._account.stages)
        self._account.stages.append(Stage(number, phase, rate_per_s, began_s, began_s))
        if phase != "warm_up" and number <= 1:
            self._guard.began()
        return Run(number, phase, rate_per_s)

    def _end_of_stage(self, run: Run, at_s: float) -> None:
        """Go on to the next stage, or end, if this one has lasted long enough to tell."""
        stage = self._account.stages[run.stage]
        lasted_s = at_s - stage.began_s
        self._account.stages[run.stage] = replace(stage, ended_s=at_s)
        if run.phase == "warm_up":
            warm = sum(each.first_s is not None or each.end_s is not None for each in self._account.requests.values())
            waiting = sum(each.first_s is None for each in self._account.open.values())
            if lasted_s >= self._plan.warm_up_s and not warm:
                self._stop("smoke_failed", at_s, f"no answer within {lasted_s:.0f} s")
            elif lasted_s >= self._plan.warm_up_s or (
                waiting <= QUIET and (warm >= self._plan.warm_up or self._is_warm(at_s))
            ):
                self._advance(at_s)  # what a cold engine let wait is nobody's fault but the warm-up's
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

    def _is_warm(self, at_s: float) -> bool:
        """By its own count the engine had served enough before the sweep, and its first answers were no slower than the next.

        A first answer that takes more than twice the median of those after the first two shows an engine, or a path to it, that
        was cold whatever it counted: then the whole warm-up is sent.
        """
        before = self._account.readings[0][1] if self._account.readings else None
        if before is None or (before.requests_finished_total or 0.0) < WARM_AFTER * max(1, before.ranks or 1):
            return False
        sent = list(self._account.requests.values())
        later = [each.waited_s(at_s) for each in sent[2:] if each.first_s is not None]
        slowest_s = max((each.waited_s(at_s) for each in sent[:2]), default=0.0)
        return len(later) >= WARM_ANSWERS - 2 and slowest_s <= WARM_FACTOR * median(later)

    def _climb(self, run: Run, lasted_s: float, at_s: float) -> None:
        """After the ramp of a target without a page: from well below where it ended, once it is quiet."""
        if run.phase == "climb":
            if lasted_s >= CLIMB_S:
                self._order = self._begin("climb", run.rate_per_s * CLIMB, at_s)
        elif lasted_s >= REST_S[0] and (lasted_s >= REST_S[1] or len(self._account.open) <= QUIET):
            self._order = self._begin("climb", max(self._plan.min_rate_per_s, CLIMB_FROM * self._peak_per_s), at_s)

    def _advance(self, at_s: float) -> None:
        """The next rate of the plan."""
        number = sum(each.phase in ("ramp", "grid") for each in self._account.stages)
        rate = self._plan.rate(number)
        if rate is None:
            if not self._stays(at_s):
                self._stop("highest_rate", at_s, f"{self._account.stages[-1].rate_per_s:g}/s")
        else:
            self._order = self._begin("grid" if self._plan.mode == "grid" else "ramp", rate, at_s)

    def _stays(self, at_s: float) -> bool:
        """Adaptive: at the highest rate until its events show each SLO, or are several times as many as that takes at best."""
        if self._plan.mode != "adaptive":
            return False
        stage = self._account.stages[-1]
        at_best = max(min_observations(float(slo.error_budget_ratio), ERROR) for slo in self._plan.slos)
        if (at_s - stage.began_s) * stage.rate_per_s >= STAYS * at_best:
            return False
        sent = [each for each in self._account.requests.values() if each.stage == stage.number and each.valid]
        for slo in self._plan.slos:
            seen = observed(slo, [(*each.events.get(slo.name, (0, 0)), each.output_tokens) for each in sent])
            if log_evidence_below(seen, float(slo.error_budget_ratio)) < -log(ERROR):
                return True
        return False

    def _decide(self, stage: Stage, at_s: float) -> None:
        """Enough breaches end the sending."""
        breached = self._breached.get(stage.number, 0)
        latest = self._latest(stage.phase)
        if 2 * sum(latest) >= self._last:
            self._stop("breaching", at_s, f"{sum(latest)} of the last {len(latest)} requests")
        elif stage.phase in ("ramp", "climb") and breached >= IN_A_STAGE and self._probably(breached, stage.sent):
            if (
                stage.phase == "ramp"
                and self._plan.mode == "adaptive"
                and not self._account.modelled()
                and isinstance(self._order, Run)
            ):
                self._peak_per_s = stage.rate_per_s
                self._account.stages[-1] = replace(self._account.stages[-1], ended_s=at_s)
                self._order = self._begin("rest", self._plan.min_rate_per_s, at_s)
            else:
                self._stop("knee_passed", at_s, f"{breached} breaches at {stage.rate_per_s:.3g}/s")
        elif stage.phase == "grid" and breached >= IN_A_STAGE and self._surely(breached, stage.sent):
            self._stop("knee_passed", at_s, f"{breached} of {stage.sent} requests breach at {stage.rate_per_s:.3g}/s")

    def _latest(self, phase: Phase) -> list[bool]:
        """Of the last requests to come that are known, of this phase: whether they breached."""
        latest: list[bool] = []
        for request in islice(reversed(self._account.requests.values()), REACH):
            if self._account.stages[request.stage].phase != phase or len(latest) == self._last:
                break
            if request.breached or request.counted:
                latest.append(request.breached)
        return latest

    def _probably(self, breached: int, sent: int) -> bool:
        """More than the strictest objective allows, at odds of fifty to one (without a page twenty); gentle asks for no odds.

        Two of hundreds are what the objective allows. To stop at them tells nothing of a target that breaches a little at any
        rate (prompts of very different lengths).
        """
        allowed = min(float(each.error_budget_ratio) for each in self._plan.slos)
        odds = ODDS if self._account.readings else ODDS_BLIND
        return self._plan.mode == "gentle" or at_least(breached, sent, allowed) < odds

    def _surely(self, breached: int, sent: int) -> bool:
        """More than the strictest objective allows, at odds of a thousand to one."""
        return at_least(breached, sent, min(float(each.error_budget_ratio) for each in self._plan.slos)) < 1e-3

    def _near(self, at_s: float) -> bool:
        """Gentle: of the last dozen known and of those that wait too long for it, two or more reach the share."""
        if self._plan.mode != "gentle":
            return False
        share = self._plan.gentle_share
        waiting = sum(
            not each.counted and each.max_threshold_share(at_s, self._plan.slos) >= share
            for each in self._account.open.values()
        )
        return sum(each >= share for each in self._shares) + waiting >= 2

    def _clear(self, stage: Stage, lasted_s: float) -> bool:
        """Half a stage is enough where nearly all of it is answered already, and far below every threshold."""
        if stage.phase != "ramp" or lasted_s < self._plan.stage_length_s / 2 or stage.sent < LAST:
            return False
        signals = self._account.readings[-1][1] if self._account.readings else None
        if signals is not None and signals.requests_waiting:
            return False
        return stage.answered >= 0.8 * stage.sent and max(self._shares, default=1.0) < 0.25

    def _falls_behind(self, stage: Stage, at_s: float) -> bool:
        """In the second half of a long stage: arrivals that exceed completions by more than chance, in flight ever more."""
        middle_s = (stage.began_s + at_s) / 2
        if at_s - middle_s < GROWTH_S:
            return False
        came = sum(each.at_s >= middle_s for each in self._account.requests.values())
        gone = sum(each.end_s is not None and each.end_s >= middle_s for each in self._account.requests.values())
        return gone < 0.8 * came and came - gone > 4 * sqrt(came)

    # -- the end

    def _stop(self, reason: Reason, at_s: float, detail: str) -> None:
        """The sending ends; the first reason is the one that stands, unless what was measured is gone."""
        if isinstance(self._order, Finished):
            return
        if reason in VOID:
            self._finish(reason, detail, void=True)
        elif isinstance(self._order, Run):
            self._account.stages[-1] = replace(self._account.stages[-1], ended_s=at_s)
            if reason == "smoke_failed":
                self._capacities = tuple(Capacity(each.name, "not_enough_data") for each in self._plan.slos)
                self._finish(reason, detail)
            else:
                # Gentle ends before that: what binds may not have shown yet.
                passed = reason not in UNREACHED and self._plan.mode != "gentle"
                reached = passed or self._ramp_reason is not None
                cut = reason in UNREACHED and not reached
                spoilt = reason == "prober_late"
                record = self._account.record(self._plan, reached=reached, cut=cut, spoilt=spoilt)
                self._order = Estimate(reason, detail, record)

    def _finish(self, reason: Reason, detail: str, *, void: bool = False) -> None:
        capacities, stages = () if void else self._capacities, self._account.settled()
        teller = self._account.teller(stages)
        self._order = Finished(reason, detail, capacities, stages, void, self._ramp_reason, teller)
