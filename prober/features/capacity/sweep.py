"""The sweep as a state machine without clock and sockets. It finds the highest rate at which the SLOs hold.

Events go in, `action` says what to do now; a driver compares it with the previous one after each call:

    sweep = Sweep(spec, at_s=now())
    while not isinstance(action := sweep.action, Finished):
        if isinstance(action, Run): ...     # send at action.rate_per_s, open loop, Poisson, however the answers end
        else:                               # Estimate: send nothing more, cut the requests in flight, then
            estimate = in_another_process(estimate_capacity, action.record)         # prober.features.capacity.estimate
            sweep.estimated(estimate.capacities)        # or, if that process failed: sweep.not_estimated(why)
        ...                                 # feed events; a tick every 0.25 s, the engine's page after `page_every_s` or later

A sweep sends in stages of constant rate: a warm-up, then a ramp (or a grid). An event ends a stage:

    warm    enough requests of the warm-up are answered
    over    the stage has lasted long enough, and nothing speaks against its rate

The sending ends for a reason in `actions.Reason`: the target's own limit, harm to it, the end of the plan, or an outside cause. Then
an estimate is made, unless the reason voids the measurement; it ends the sweep.

All times `at_s` are seconds of the prober's monotonic clock (that of `Timeline`, ÷ 1e9) and never decrease. Calls for unknown
requests, or after the end, have no effect. The driver does pacing, tokens and connections; the machine decides rates, stages
and the end, and keeps the record.
"""

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Literal

from prober.config.sweep import WARM_UP, SweepSpec
from prober.config.target import BudgetSpec
from prober.features.capacity.actions import UNREACHED, Action, Estimate, Finished, LimitReason, Reason, Run
from prober.features.capacity.request_log import RequestLog
from prober.features.capacity.sweep_record import Phase, Reading, RequestRecord, Stage
from prober.measure.engine_signals import SIZE_READINGS, EngineSignals
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import WarmUpLength
from prober.probing.stop_conditions import (
    FAILED_RATIO,
    PAGE_LOST_S,
    SEND_MORE,
    TTFT_FACTOR,
    UNSENT_RATIO,
    UNSENT_RESULTS,
    VOID,
    WAITING_SHARE,
    StopConditions,
)
from prober.results.capacity import Capacity
from prober.results.refused_requests import MAX_REFUSED_RATIO, RefusedRequests, refused_requests
from prober.results.shedding import is_shed
from prober.results.steadiness import SteadinessTest
from prober.results.stop_reason import BEFORE, ending
from prober.statistics.quantiles import probability_of_at_least
from prober.statistics.sequential_test import Observations, evidence

Event = Literal["warm", "over"]
# Sending ends if half of the last judged requests breach. A grid judges more: one burst does not end it.
JUDGED_REQUESTS, JUDGED_REQUESTS_GRID = 8, 32
MIN_BREACHES = 2  # in a stage
# A ramp ends at breaches that chance explains with less than this probability, tested at each stage; evidence adds up.
MAX_CHANCE, MAX_CHANCE_WITHOUT_PAGE, MAX_CHANCE_GRID = 0.02, 3e-3, 1e-3
QUIET_REQUESTS = 2  # in flight that hardly load the engine
PAGE_S, PAGE_NEAR_S = 0.5, 0.1  # between page readings; near the knee
# A stage of a ramp ends after half of its time if this share of its requests is answered with all latencies below this
# share of their thresholds.
CLEAR_ANSWERED_RATIO, CLEAR_THRESHOLD_SHARE = 0.8, 0.25
GENTLE_REQUESTS, GENTLE_BREACHES = 12, 2
GENTLE_SHARE = 0.7  # of a threshold
# Gentle: factor on the queue limit, and answers needed for evidence. Until then the rate stays, and a queue that other load may
# cause does not end the sweep.
GENTLE_QUEUE, GENTLE_ANSWERS = 0.25, 25
OWN_TTFT_S = 10.0  # age up to which the sweep's first tokens are subtracted from the engine's histogram
# In flight at the first rate of a ramp where the warm-up waits; ratio to the last first rate from which it is lowered.
START_IN_FLIGHT, SLOWER_RATIO = 0.25, 0.8
AS_FAST_FACTOR = 1.5  # between medians of the last and of earlier TTFTs, without a page: no queue grew


def used_share(
    spec: SweepSpec, budget: BudgetSpec | None, requests: int, prompt_tokens: int, output_tokens: int
) -> tuple[float, LimitReason]:
    """(largest used share of the sweep's limits, reason for which that limit ends a sweep) after these requests and tokens."""
    limits, dollars = spec.limits, budget.dollars(prompt_tokens, output_tokens) if budget is not None else 0.0
    shares: dict[LimitReason, float] = {
        "request_budget": requests / spec.most_requests,
        "token_budget": (prompt_tokens + output_tokens) / limits.tokens if limits.tokens else 0.0,
        "cost_budget": dollars / limits.cost if limits.cost else 0.0,
    }
    limit = max(shares, key=lambda reason: shares[reason])
    return shares[limit], limit


class Sweep:
    """State machine of a sweep, used as in the module's docstring. `action`: what to do now; the same value until something changes

    warm_up: requests answered before the first stage, without counted latencies
    steadiness: test of the warm-up's latencies
    lengths: (prompt, output) tokens of some thousand random requests of the workload, because the longest decide the knee and short
    sweeps seldom send them; empty: use those that were sent
    budget: the target's budget, with prices for a limit in dollars
    demand_per_s: background load before the sweep in requests/s, for pages that do not count requests; None: unknown
    before: readings of the metrics page in the minutes before the sweep, used in the estimate but not to end the sweep
    shed_allowed: requests that the target sheds are bad events, but neither failures that end the sweep nor breaches that end a grid
    probes: (stage, result) in order of their ends, including the warm-up and cut requests
    """

    def __init__(
        self,
        spec: SweepSpec,
        at_s: float,
        warm_up: WarmUpLength = WARM_UP,
        lengths: tuple[tuple[int, int], ...] = (),
        budget: BudgetSpec | None = None,
        demand_per_s: float | None = None,
        before: Sequence[Reading] = (),
        shed_allowed: bool = False,
    ) -> None:
        self._spec, self._warm_up, self._lengths, self._budget = spec, warm_up, lengths, budget
        thresholds = [slo.threshold_s for slo in spec.slos if slo.signal in ("ttft", "ttft_answer") and slo.threshold_s]
        self._ttft_s = min(thresholds, default=None)
        self._is_judged_by_first_token = all(slo.signal == "ttft" for slo in spec.slos)
        self._stop_conditions = StopConditions(spec.guard, self._ttft_s)
        self._began_s, self._shed_allowed = at_s, shed_allowed
        self._log = RequestLog(spec.slos, before, demand_per_s)
        self.probes: list[tuple[int, ProbeResult]] = []
        self.steadiness = SteadinessTest()
        self._changed_readings = 0
        # (stage, True if not sent by the prober), by sending process, so that others do not hide one process.
        self._unsent: dict[int, deque[tuple[int, bool]]] = {}
        self._first_unsent_stage: int | None = None
        self._threshold_shares: deque[float] = deque(maxlen=GENTLE_REQUESTS)
        self._longest_s = 0.0  # request of a warm-up that waits
        self._first_per_s = spec.lowest_rate
        self._capacities: tuple[Capacity, ...] = ()
        self._phase: Phase = "grid" if spec.mode == "grid" else "ramp"
        first: Phase = self._phase if warm_up.is_over(0, 0.0) else "warm_up"
        self.action: Action = self._begin(first, spec.lowest_rate, at_s)

    # -- events

    def sent(
        self, request_id: str, at_s: float, prompt_tokens: int, output_tokens: int, cached_tokens: int = 0
    ) -> None:
        """Add a sent request. tokens: as requested; cached_tokens: those of the prompt that the prefix cache has"""
        log = self._log
        if not isinstance(self.action, Run) or request_id in log.requests:
            return
        tokens = prompt_tokens, output_tokens
        request = RequestRecord(at_s, *tokens, self.action.stage, known_s=at_s, cached_tokens=cached_tokens)
        log.sent(request_id, request)
        requests = len(log.requests)
        share, limit = used_share(self._spec, self._budget, requests, log.prompt_tokens, log.output_tokens)
        if len(log.open) >= self._spec.max_in_flight:
            self._end_sending("saturated", at_s, f"{len(log.open)} requests in flight")
        elif share >= 1:
            self.limit_reached(limit, at_s)

    def limit_reached(self, limit: LimitReason, at_s: float, note: str = "") -> None:
        """Stop sending, because the next request would exceed a limit. note: names a limit that is not the sweep's own"""
        log = self._log
        tokens = log.prompt_tokens + log.output_tokens
        self._end_sending(limit, at_s, f"{len(log.requests)} requests, {tokens} tokens{note}")

    def first_token(self, request_id: str, at_s: float) -> None:
        """Add the arrival of a request's first content. Without this call its TTFT is unknown until it ends."""
        request = self._log.open.get(request_id)
        if request is None or request.first_s is not None:
            return
        request.first_token(at_s, self._spec.slos)
        self._judge(request, at_s, is_final=self._is_judged_by_first_token)

    def result(self, result: ProbeResult, at_s: float) -> None:
        """Add the result of a request that ended, or was shed without having been `sent`."""
        log = self._log
        if result.request_id not in log.requests and result.outcome is Outcome.SHED:
            self._end_sending("saturated", at_s, "a request was shed at the in-flight cap")
        request = log.open.pop(result.request_id, None)
        if request is None:
            return
        self.probes.append((request.stage, result))
        if not isinstance(self.action, Run):
            return  # requests cut at the end of the sending are no further evidence
        request.finished(result, at_s, self._spec.slos)
        if is_shed(result) and not self._shed_allowed and (room := self._room(request, at_s)):
            self._end_sending("rate_limited", at_s, f"{result.outcome.value}: {result.detail}; {room}")
            return
        if self.action.phase == "warm_up":
            self.steadiness.add(result)
        stage, is_refused = log.stages[request.stage], result.outcome is Outcome.REJECTED
        stage.failed += request.valid and request.failed
        stage.answered += request.valid and not request.failed
        stage.refused += is_refused and not request.valid
        may_shed = self._shed_allowed and is_shed(result)
        stage.shed += may_shed
        if not (may_shed and stage.phase == "grid"):
            self._judge(request, at_s, is_final=True)
        if (unsent := self._unsent_text(request, result)) is not None:
            self._end_sending("not_sent", at_s, unsent)
        elif (failed := stage.failed - stage.shed) > 1 and failed > FAILED_RATIO * stage.sent:
            reason: Reason = "smoke_failed" if stage.phase == "warm_up" and not stage.answered else "failed"
            self._end_sending(reason, at_s, f"{failed} of {stage.sent}: {result.outcome.value}: {result.detail}")
        elif is_refused and (self._refuses_too_many() if stage.phase != "warm_up" else not stage.answered):
            self._end_sending("refused", at_s, f"{result.outcome.value}: {result.detail}")

    def page(self, at_s: float, signals: EngineSignals) -> None:
        """Add a reading of the engine's page. Earlier readings show the load before the sweep."""
        if isinstance(self.action, Finished):
            return
        change = self._stop_conditions.change(signals)
        if change is not None:
            self._changed_readings += 1
            if self._changed_readings >= SIZE_READINGS:
                self._end_sending(change[0], at_s, change[1])
            return
        log, rate_per_s = self._log, 0.0
        if isinstance(self.action, Run):
            log.readings.append((at_s, signals))
            rate_per_s = self.action.rate_per_s
        own_ttfts = [
            (request.first_s, request.first_s - request.at_s)
            for request in log.requests.values()
            if request.first_s and request.first_s > at_s - OWN_TTFT_S
        ]
        is_gentle = self._spec.mode == "gentle"
        share = WAITING_SHARE * GENTLE_QUEUE if is_gentle and self._has_answers() else WAITING_SHARE
        condition = self._stop_conditions.reading(at_s, signals, rate_per_s + log.others_per_s(), own_ttfts, share)
        if condition is None or not isinstance(self.action, Run):
            return
        # The engine's queue and cache end it if it is gentle, or if there may be other load.
        others = log.others() if not is_gentle and condition != "production_ttft" else None
        if others is None or others.least_per_s > 0:
            self._end_sending(condition, at_s, "the engine's page says so")

    def stop(self, why: str, at_s: float, reason: Reason = "guard") -> None:
        """End the sweep for a reason from outside: `guard` (an alert, a burn rate, a person), `lease_lost` or `retry_after`."""
        self._end_sending(reason, at_s, why)

    def tick(self, at_s: float) -> None:
        """Advance the time: end stages, and count overdue requests as breaches."""
        if not isinstance(self.action, Run):
            return
        for request in list(self._log.open.values()):
            if request.check_overdue(at_s, self._spec.slos):
                self._judge(request, at_s, is_final=False)
        limit_s, read_s = self._spec.limits.time, self._stop_conditions.last_s
        if at_s - self._began_s >= limit_s:
            self._end_sending("time_budget", at_s, f"{limit_s:g} s")
        elif read_s is not None and at_s - max(read_s, self._log.stage.began_s) > PAGE_LOST_S:
            self._end_sending("page_lost", at_s, f"no reading for {at_s - read_s:.1f} s")
        if isinstance(self.action, Run):
            self._log.stage.ended_s = at_s
            if (event := self._event(at_s)) is not None:
                self._advance(event, at_s)

    def estimated(self, capacities: tuple[Capacity, ...]) -> None:
        """Take the result of the action `Estimate`, which ends the sweep."""
        if isinstance(estimate := self.action, Estimate):
            self._capacities = capacities
            self._finish(estimate.reason, estimate.detail)

    def not_estimated(self, why: str) -> None:
        """Take the failure of the action `Estimate`: the sweep has stages but no capacity. why: the error, with its remedy"""
        if isinstance(estimate := self.action, Estimate):
            detail = f"{why}{BEFORE}the sending ended: {ending(estimate.reason, estimate.detail)}"
            self._finish("no_estimate", detail, estimate.reason)

    @property
    def page_every_s(self) -> float:
        """Least time between page readings: short once requests wait or breach, because a limit shows only while it binds."""
        return PAGE_NEAR_S if self._log.waits or self._log.stage.breached else PAGE_S

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages so far."""
        return tuple(self._log.stages)

    # -- requests

    def _unsent_text(self, request: RequestRecord, result: ProbeResult) -> str | None:
        """Explain that the prober did not send too many of one process's last requests; None if it did."""
        judged = self._unsent.setdefault(result.worker, deque(maxlen=UNSENT_RESULTS))
        judged.append((request.stage, result.outcome is Outcome.INVALID))
        unsent = [number for number, is_unsent in judged if is_unsent]
        if len(unsent) <= 2 or len(unsent) <= UNSENT_RATIO * len(judged):
            return None
        stages, self._first_unsent_stage = self._log.stages, min(unsent)
        source = f" of worker {result.worker}" if result.worker else ""
        first = stages[self._first_unsent_stage]
        is_first = all(before.phase == "warm_up" for before in stages[: first.number])
        rest = "" if is_first else f"; what was sent before {first.phase} {first.rate_per_s:.3g}/s counts"
        return f"{len(unsent)} of the last {len(judged)} requests{source}; {SEND_MORE}{rest}"

    def _room(self, request: RequestRecord, at_s: float) -> str:
        """Evidence that the engine had room for a request that was shed sooner than answers begin; "" without it.

        By its page there is neither a queue nor a full KV cache; without a page, its last answers begin as soon as earlier ones.
        """
        answered = [of for of in self._log.requests.values() if of.is_answered]
        ttfts_s = [ttft_s for of in answered if (ttft_s := of.ttft_s) is not None]
        if ttfts_s and request.waited_s(request.known_s) > median(ttfts_s):
            return ""
        pages = [page for read_s, page in self._log.readings if read_s > at_s - PAGE_LOST_S]
        if pages and pages[-1].requests_queued is not None:
            full = self._spec.guard.kv_cache
            is_full = any(page.requests_queued or (page.kv_cache_usage_ratio_max or 0) > full for page in pages)
            return "" if is_full else "the engine's page shows no queue"
        last, before = ttfts_s[-JUDGED_REQUESTS:], ttfts_s[:-JUDGED_REQUESTS]
        is_as_fast = not before or median(last) <= AS_FAST_FACTOR * median(before)
        return "answers are as fast as before" if is_as_fast else ""

    def _refuses_too_many(self) -> bool:
        """True if the evidence proves that too many requests are refused."""
        stages = [stage for stage in self._log.stages if stage.phase != "warm_up"]
        refused = sum(stage.refused for stage in stages)
        others = sum(stage.answered + stage.failed for stage in stages)
        return evidence(Observations({1.0: refused, 0.0: others}), MAX_REFUSED_RATIO) == "fails"

    def _refused(self) -> RefusedRequests:
        """The refused requests; those of the warm-up only if nothing else has ended."""
        ended = [result for stage, result in self.probes if self._log.stages[stage].phase != "warm_up"]
        return refused_requests(ended or [result for _, result in self.probes])

    def _judge(self, request: RequestRecord, at_s: float, *, is_final: bool) -> None:
        """Count whether a request breaches by now. Ends the sending for harm or enough breaches."""
        stage, log, spec = self._log.stages[request.stage], self._log, self._spec
        if stage.phase == "warm_up":
            return
        is_breach = request.valid and (request.failed or any(request.breaches(slo) for slo in spec.slos))
        stage.breached += is_breach - request.breached  # the end may show that it was only read late
        request.breached = is_breach
        if not request.valid:
            return
        if is_final and not request.counted:
            self._threshold_shares.append(request.max_threshold_share(at_s, spec.slos))
            request.counted = True
        ttft_s = request.waited_s(at_s)
        if self._ttft_s and not request.failed and ttft_s > TTFT_FACTOR * self._ttft_s:
            self._end_sending("slow", at_s, f"a TTFT of {ttft_s:.3g} s or more")
        judged = JUDGED_REQUESTS_GRID if stage.phase == "grid" else JUDGED_REQUESTS
        latest = log.latest_breaches(stage.phase, judged)
        if 2 * sum(latest) >= judged:
            self._end_sending("breaching", at_s, f"{sum(latest)} of the last {len(latest)} requests")
        elif stage.breached >= MIN_BREACHES and (spec.mode == "gentle" or self._is_more_than_chance(stage)):
            share = f"{stage.breached} of {stage.sent} requests breach"
            text = share if stage.phase == "grid" else f"{stage.breached} breaches"
            self._end_sending("knee_passed", at_s, f"{text} at {stage.rate_per_s:.3g}/s")

    def _is_more_than_chance(self, stage: Stage) -> bool:
        """True if a stage has more breaches than the objectives allow and chance explains.

        An objective allows a few breaches in hundreds, and some targets breach a little at any rate (prompts of very different
        lengths). A gentle sweep, which stops at any breach, does not use this.
        """
        max_chance = MAX_CHANCE if self._log.readings else MAX_CHANCE_WITHOUT_PAGE
        max_chance = MAX_CHANCE_GRID if stage.phase == "grid" else max_chance
        budget_ratio = min(float(slo.error_budget_ratio) for slo in self._spec.slos)
        return probability_of_at_least(stage.breached, stage.sent, budget_ratio) < max_chance

    # -- stages

    def _advance(self, event: Event, at_s: float) -> None:
        """Begin the stage that follows an event. At the highest rate an adaptive sweep stays while more events may still prove that an
        SLO holds.
        """
        spec = self._spec
        rate_per_s = self._first_per_s if event == "warm" else spec.after(self._log.stage.rate_per_s)
        if rate_per_s is not None:
            self.action = self._begin(self._phase, rate_per_s, at_s)
        elif spec.mode != "adaptive" or not self._log.needs_more_events():
            self._end_sending("highest_rate", at_s, f"{self._log.stage.rate_per_s:g}/s")

    def _begin(self, phase: Phase, rate_per_s: float, at_s: float) -> Run:
        number = len(self._log.stages)
        self._log.stages.append(Stage(number, phase, rate_per_s, at_s, at_s))
        if phase != "warm_up" and number <= 1:
            self._stop_conditions.began()
        return Run(number, phase, rate_per_s)

    def _event(self, at_s: float) -> Event | None:
        """The event that the time implies for the stage; None: it continues. May end the sending instead."""
        log, stage = self._log, self._log.stage
        if stage.phase == "warm_up":
            return self._warm_event(at_s)
        if (is_near := self._is_near_threshold(at_s)) and self._has_answers():
            share = f"{GENTLE_BREACHES} of the last {GENTLE_REQUESTS} latencies reach {GENTLE_SHARE:.0%} of a threshold"
            self._end_sending("near_threshold", at_s, share)
            return None
        if log.falls_behind():
            self._end_sending("saturated", at_s, "completions fall behind arrivals")
            return None
        length_s = self._spec.stage_s
        if stage.phase == "ramp" and self._spec.step is None:
            length_s = max(length_s, self._longest_s)
        may_be_short = stage.phase != "grid" and stage.lasted_s >= length_s / 2 and self._is_clear(stage)
        return "over" if not is_near and (stage.lasted_s >= length_s or may_be_short) else None

    def _warm_event(self, at_s: float) -> Event | None:
        """`warm` at the end of the warm-up. Ends the sending if nothing was answered."""
        self._slow_down(at_s)
        log, warm_up, lasted_s = self._log, self._warm_up, self._log.stage.lasted_s
        answered = sum(request.is_answered for request in log.requests.values())
        waiting = sum(request.first_s is None for request in log.open.values())
        is_over = warm_up.seconds is not None and lasted_s >= warm_up.seconds
        is_enough = warm_up.requests is not None and answered >= warm_up.requests
        is_enough = is_enough or (warm_up.until_steady and self.steadiness.is_steady is True)
        if is_over and not answered:
            self._end_sending("smoke_failed", at_s, f"no answer within {lasted_s:.0f} s")
            return None
        return "warm" if is_over or (is_enough and waiting <= QUIET_REQUESTS) else None

    def _slow_down(self, at_s: float) -> None:
        """Lower the first rate of a ramp, and that of its warm-up, once a few requests fill the engine."""
        log, requests = self._log, self._log.requests.values()
        shares = [request.max_threshold_share(at_s, self._spec.slos) for request in requests]
        waits = log.waits if log.readings else max(shares, default=0.0) >= GENTLE_SHARE
        if self._spec.mode == "grid" or not waits:
            return
        self._longest_s = max(((at_s if of.end_s is None else of.end_s) - of.at_s for of in requests), default=0.0)
        if self._first_per_s * self._longest_s > START_IN_FLIGHT / SLOWER_RATIO:
            self._first_per_s = log.stage.rate_per_s = START_IN_FLIGHT / self._longest_s
            self.action = Run(log.stage.number, log.stage.phase, self._first_per_s)

    def _is_clear(self, stage: Stage) -> bool:
        """True if nearly all requests of a stage are answered, far below every threshold, and none waits in the engine."""
        is_answered = stage.sent >= JUDGED_REQUESTS and stage.answered >= CLEAR_ANSWERED_RATIO * stage.sent
        return is_answered and not self._log.waits and max(self._threshold_shares, default=1.0) < CLEAR_THRESHOLD_SHARE

    def _is_near_threshold(self, at_s: float) -> bool:
        """True in a gentle sweep if GENTLE_BREACHES of the last judged and waiting requests reach GENTLE_SHARE of a threshold."""
        if self._spec.mode != "gentle":
            return False
        waiting = [request for request in self._log.open.values() if not request.counted]
        shares = [*self._threshold_shares, *(request.max_threshold_share(at_s, self._spec.slos) for request in waiting)]
        return sum(share >= GENTLE_SHARE for share in shares) >= GENTLE_BREACHES

    def _has_answers(self) -> bool:
        """True if there are enough answers to fit a model of the engine."""
        return sum(stage.answered for stage in self._log.stages if stage.phase != "warm_up") >= GENTLE_ANSWERS

    # -- the end

    def _end_sending(self, reason: Reason, at_s: float, detail: str) -> None:
        """Stop sending. The first reason stays, unless a later one voids the measurement."""
        if reason in VOID and not isinstance(self.action, Finished):
            self._finish(reason, detail)
        if not isinstance(self.action, Run):
            return
        self._log.stage.ended_s, cut = at_s, reason in UNREACHED
        if reason == "smoke_failed":
            self._capacities = tuple(Capacity(slo.name, "not_enough_data") for slo in self._spec.slos)
        if reason in ("smoke_failed", "rate_limited") or self._refused().is_too_many:
            self._finish(reason, detail)
        else:
            reached = not cut and self._spec.mode != "gentle"  # gentle ends before the binding limit may show
            record = self._log.record(self._lengths, reached=reached, cut=cut, until_stage=self._first_unsent_stage)
            self.action = Estimate(reason, detail, record)

    def _finish(self, reason: Reason, detail: str, sending_ended: Reason | None = None) -> None:
        refused = self._refused()
        has_answer = reason not in (*VOID, "no_estimate", "rate_limited") and not refused.is_too_many
        capacities = self._capacities if has_answer else ()
        self.action = Finished(
            reason, detail, capacities, self._log.final_stages(), sending_ended, self._log.others(), refused
        )
