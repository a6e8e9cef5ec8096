"""Runs a sweep: paces its requests, reads the engine's page meanwhile, and cuts requests in flight at the end."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add, sub
from random import Random
from types import MappingProxyType

from prober.config.sweep import WARM_UP, SweepSpec
from prober.features.capacity.actions import Action, Estimate, Finished, LimitReason, Reason, Run
from prober.features.capacity.estimate_process import EstimateFailed, estimate_in_process
from prober.features.capacity.sweep import PAGE_NEAR_S, PAGE_S, Sweep, used_share
from prober.features.capacity.sweep_record import Record
from prober.measure.engine_signals import EngineChange, PageReading
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import WarmUpLength
from prober.probing.observer import OpenPage, PageSource
from prober.probing.probe import new_request
from prober.probing.sender import Sender, Sending
from prober.probing.session import Session, UnidentifiedTarget
from prober.results.shedding import is_shed
from prober.results.steadiness import SteadinessTest
from prober.workload.arrivals import poisson
from prober.workload.budget import BudgetDemand
from prober.workload.workloads import RequestGenerator, sample_lengths


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """Progress of the running sweep.

    stage: number, from 0; rate_per_s: requests per second of the sweep; both None while it does not send
    requests: sent so far
    """

    phase: str
    stage: int | None
    rate_per_s: float | None
    requests: int
    in_flight: int
    elapsed_s: float


TICK_NS = 250_000_000
LEAD_NS = 200_000_000  # from a request's launch, when it connects, to its due time
BUDGET_REASONS: dict[str, LimitReason] = {
    "tokens": "token_budget",
    "cost": "cost_budget",
}  # by daily budget of the target
DRAWN_LENGTHS = 3_000  # of the workload: the longest requests decide the knee
LEASE_LOST = "another prober may sweep now"
# Largest share of time for the fastest page reading, as an engine on one core answers nothing meanwhile (vLLM 0.32: 6
# to 15 ms); and longest pause for this: two failed or foreign readings in a row do not lose the page (3 s).
MAX_PAGE_SHARE, MAX_PAGE_REST_NS = 0.01, 700_000_000
BEFORE_S = 3.0  # the page is read before the first request, to see the existing load


@dataclass(frozen=True, slots=True)
class SweepRun:
    """A sweep that ran.

    began_ns: of the monotonic clock
    probes: (stage, result) in order of their ends, including the warm-up and cut requests
    quiet_s: seconds until the end of the pause that the target requested (Retry-After)
    steadiness: test of the warm-up's latencies
    """

    finished: Finished
    began_ns: int
    probes: tuple[tuple[int, ProbeResult], ...]
    quiet_s: float = 0.0
    steadiness: SteadinessTest = field(default_factory=SteadinessTest)

    @property
    def tokens(self) -> int:
        """Prompt and output tokens of all requests, as counted by the server, or as requested if an answer was cut."""
        tokens = 0
        for _, probe in self.probes:
            if (usage := probe.timeline.usage) is not None:
                tokens += (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)
            elif probe.timeline.sent_ns is not None:
                tokens += probe.requested_prompt_tokens + probe.requested_output_tokens
        return tokens


class SweepRunner:
    """Runs one sweep of a session's target, storing the page's readings in the session.

    on_action: called with each action of the machine
    before: readings of the engine's page in the minutes before the sweep
    demand: returns the users' demand in requests per second, None if unknown; called before the first request, because later it may
    include the sweep's own
    is_allowed: called before each request; once it returns False the sweep ends (`lease_lost`)
    needs: part of each daily budget reserved for scheduled probes
    on_retry_after: called with the pause in seconds that an answer requests
    shed_allowed: see `Sweep`; pauses requested by shed requests do not end it
    """

    def __init__(
        self,
        session: Session,
        sweep: SweepSpec,
        open_page: OpenPage,
        on_action: Callable[[Action], None],
        warm_up: WarmUpLength = WARM_UP,
        before: Sequence[PageReading] = (),
        demand: Callable[[], Awaitable[float | None]] | None = None,
        is_allowed: Callable[[], bool] = lambda: True,
        needs: Mapping[str, BudgetDemand] = MappingProxyType({}),
        on_retry_after: Callable[[float], None] = lambda _: None,
        *,
        shed_allowed: bool = False,
    ) -> None:
        # It has its own cap, state and turn of checks, and spends the target's budgets.
        self._target = session.target.beside()
        self._target.check_turn = asyncio.Lock()
        self._target.spec = session.target.spec.model_copy(update={"max_in_flight": sweep.max_in_flight})
        self._target.protected_demand = needs
        self.session, self._clock, self._rng = session, session.clock, session.rng
        self._requests, self._spec = RequestGenerator(sweep.workload, session.rng), sweep
        self._warm_up, self._on_action = warm_up, on_action
        self._open_page, self._on_retry_after = open_page, on_retry_after
        self._before, self._demand, self._is_allowed = before, demand, is_allowed
        self._shed_allowed = shed_allowed
        self._sweep: Sweep | None = None
        self._cached_tokens = 0  # of each prompt
        self._stop_reason: tuple[str, Reason] | None = None  # of a stop before the start
        self._quiet_until_s = 0.0
        self._launched: tuple[int, ...] = (0, 0, 0)  # requests, prompt tokens, output tokens
        self._began_s = self._now_s()
        self._sender = Sender(
            self._target,
            session.launch,
            on_due=self._due,
            on_end=self._ended,
            cut_text="cut when the sweep ended",
            is_allowed=is_allowed,
            looks_up=False,
        )

    def stop(self, why: str, reason: Reason = "guard") -> None:
        """End the sweep for a reason outside the state machine: cancel requests in flight, keep the measurements."""
        if self._sweep is None:
            self._stop_reason = why, reason
        else:
            self._sweep.stop(why, self._now_s(), reason)
            self._cut_unless_sending()

    def retry_after(self, pause_s: float) -> None:
        """End the sweep, because the target requests a pause."""
        self._quiet_until_s = max(self._quiet_until_s, self._now_s() + pause_s)
        self.stop(f"{pause_s:g} s", "retry_after")

    def progress(self) -> SweepProgress:
        """The sweep's present stage, rate and number of requests."""
        action = self._sweep.action if self._sweep is not None else None
        phase = action.phase if isinstance(action, Run) else "looking at the target" if action is None else "estimate"
        stage, rate_per_s = (action.stage, action.rate_per_s) if isinstance(action, Run) else (None, None)
        in_flight = len(self._sender.under_way)
        requests = in_flight + (len(self._sweep.probes) if self._sweep is not None else 0)
        return SweepProgress(phase, stage, rate_per_s, requests, in_flight, self._now_s() - self._began_s)

    def page_read(self, reading: PageReading | None) -> None:
        """Pass a reading of the engine's page to the state machine."""
        if reading is not None:
            self.session.readings.append((self._clock.now_ns(), reading.signals))
            if self._sweep is not None:
                self._sweep.page(self._now_s(), reading.signals)
                self._cut_unless_sending()

    def engine_changed(self, change: EngineChange) -> None:
        """Do nothing: the state machine detects a changed engine on its page."""

    async def run(self) -> SweepRun:
        """Run the sweep to its end. Raises UnidentifiedTarget. If cancelled, it leaves nothing in flight."""
        if (verdict := await self._target.identify()) is not None:
            raise UnidentifiedTarget(f"{self._target.spec.url}: {verdict.detail}")
        page, metrics = None, self._target.spec.metrics
        if metrics is not None:
            metrics, name = metrics.model_copy(update={"interval": PAGE_S}), self._target.spec.key
            source = self._open_page(self._target, metrics, self._clock, self, lambda: name)
            page = asyncio.create_task(self._read(source))
        try:
            demand_per_s = await self._demand() if self._demand is not None else None
            if page is not None:
                await asyncio.wait([page], timeout=BEFORE_S)
            began_ns = self._clock.now_ns()
            before = [(reading.at_ns / 1e9, reading.signals) for reading in self._before]
            prefix = next((part.prefix for part, _ in self._spec.workload.parts), None)
            if prefix is not None and prefix.reuse == 1.0:  # all prompts begin with it: cached, if the engine caches
                readings = (*before, *self.session.readings)
                has_cache = any(signals.prefix_cache_hits_tokens_total for _, signals in readings)
                self._cached_tokens = prefix.tokens if has_cache else 0
            drawn = sample_lengths(self._spec.workload, Random(0), DRAWN_LENGTHS)
            lengths = tuple((max(1, prompt - self._cached_tokens), output) for prompt, output in drawn)
            sweep = self._sweep = Sweep(
                *(self._spec, began_ns / 1e9, self._warm_up, lengths),
                *(self._target.spec.budget, demand_per_s, before, self._shed_allowed),
            )
            for at_ns, signals in self.session.readings:
                sweep.page(at_ns / 1e9, signals)
            if self._stop_reason is not None:
                self.stop(*self._stop_reason)
            async with self._sender:
                finished = await self._carry_out(sweep)
            quiet_s = max(0.0, self._quiet_until_s - self._now_s())
            return SweepRun(finished, began_ns, tuple(sweep.probes), quiet_s, sweep.steadiness)
        finally:
            if page is not None:
                page.cancel()
                await asyncio.wait([page])

    async def _read(self, page: PageSource) -> None:
        """Read the page as often as the machine wants now, but rarely enough not to load the engine."""
        rest_ns, began_ns = MAX_PAGE_REST_NS, self._clock.now_ns()
        while await page.read():
            read_ns = now_ns = self._clock.now_ns()
            rest_ns = min(rest_ns, round((read_ns - began_ns) / MAX_PAGE_SHARE))
            while now_ns < (
                due_ns := read_ns + max(rest_ns, round(1e9 * (self._sweep.page_every_s if self._sweep else PAGE_S)))
            ):
                await self._clock.sleep_until(min(due_ns, now_ns + round(PAGE_NEAR_S * 1e9)))
                now_ns = self._clock.now_ns()
            began_ns = now_ns

    async def _carry_out(self, sweep: Sweep) -> Finished:
        """Carry out the machine's actions until it has finished."""
        action: Action | None = None
        due_times: Iterator[int] = iter(())
        due_ns, tick_ns = 0, self._clock.now_ns()
        while True:
            now_ns = self._clock.now_ns()
            if not self._is_allowed():
                self.stop(LEASE_LOST, "lease_lost")
            if now_ns >= tick_ns:
                self._tick(sweep, now_ns / 1e9)
                tick_ns = now_ns + TICK_NS
            if sweep.action != action:
                action = sweep.action
                self._on_action(action)
                if not isinstance(action, Run):
                    await self._sender.cut()
                if isinstance(action, Finished):
                    return action
                if isinstance(action, Estimate):
                    await self._estimate(sweep, action.record)
                    continue
                due_times = poisson(action.rate_per_s, self._rng, now_ns + LEAD_NS)
                due_ns = next(due_times)
            if now_ns < due_ns - LEAD_NS:
                await self._clock.sleep_until(min(tick_ns, due_ns - LEAD_NS))
                continue
            request = new_request(self._target, self._requests, due_ns)
            launched = tuple(map(add, self._launched, (1, *request.tokens)))
            share, limit = used_share(self._spec, self._target.spec.budget, *launched)
            if share > 1:  # not sent, but earlier launched requests are
                await self._clock.sleep_until(due_ns)
                sweep.limit_reached(limit, self._now_s())
            else:
                self._launched = launched
                self._sender.begin(request)
                due_ns = next(due_times)

    def _tick(self, sweep: Sweep, now_s: float) -> None:
        """Let the machine judge the requests in flight."""
        self._sender.read_arrived()
        for sending in self._sender.under_way.values():
            if (run := sending.run) is not None and run.first_ns is not None:
                sweep.first_token(run.request.request_id, run.first_ns / 1e9)
        sweep.tick(now_s)

    async def _estimate(self, sweep: Sweep, record: Record) -> None:
        """Estimate the capacities in another process, because that takes seconds of CPU."""
        try:
            capacities = await estimate_in_process(record, self._rng.getrandbits(32))
        except EstimateFailed as problem:
            sweep.not_estimated(str(problem))
        else:
            sweep.estimated(capacities)

    def _due(self, sending: Sending, result: ProbeResult | None) -> None:
        """Tell the machine that a request is sent, or which limit prevents it."""
        sweep, run = self._sweep, sending.run
        assert sweep is not None
        assert run is not None
        request = run.request
        self._launched = tuple(map(add, self._launched, (0, *map(sub, request.tokens, sending.request.tokens))))
        if result is not None and result.outcome is Outcome.OVER_BUDGET:
            budget = self._target.lacking(*request.tokens) or next(iter(self._target.budgets), "tokens")
            detail = "; the rest of the target's daily budget is for its probes"
            sweep.limit_reached(BUDGET_REASONS[budget], self._now_s(), detail)
        elif request.busy is not None:
            sweep.limit_reached("session_count", self._now_s(), f"; {request.busy.busy_text}")
        else:
            sweep.sent(request.request_id, self._now_s(), *request.tokens, self._cached_tokens)
        self._cut_unless_sending()

    def _ended(self, sending: Sending, result: ProbeResult | None) -> None:
        """Hand a finished request to the machine: its result, and its first token if not yet reported."""
        assert self._sweep is not None
        assert result is not None, "nothing is looked up beside a sweep"
        self._sweep.result(result, self._now_s())  # first, so that a refusal counts whatever its headers are
        if result.retry_after_s is not None and not (self._shed_allowed and is_shed(result)):
            self._on_retry_after(result.retry_after_s)
            self.retry_after(result.retry_after_s)
        self._cut_unless_sending()

    def _cut_unless_sending(self) -> None:
        """Cut the other requests once the machine stops sending; requests not yet due are never sent."""
        if self._sweep is not None and not isinstance(self._sweep.action, Run):
            self._sender.cancel()

    def _now_s(self) -> float:
        return self._clock.now_ns() / 1e9
