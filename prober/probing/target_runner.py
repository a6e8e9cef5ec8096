"""Probes one target: schedules, running probes and observers."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from random import Random
from typing import Any, TypeVar

from prober.config.target import ProbeSpec, TargetSpec
from prober.measure.gpu_reading import GpuReading
from prober.measure.outcome import BAD, NEUTRAL, Outcome, Trait
from prober.measure.result import ProbeResult, unsent
from prober.measure.target_state import NO_DATA_STATES, TargetEvent, TargetState
from prober.net.clock import Clock
from prober.probing.history import EventLog, FirstAnswers
from prober.probing.observer import MakeObserver, ObservedTarget, TargetObserver
from prober.probing.pacer import due_times, pace, why_missed
from prober.probing.probe import run_probe
from prober.probing.supervisor import Supervisor
from prober.probing.target import BudgetKeeper, Target
from prober.workload.arrivals import derive_seed
from prober.workload.prompt_length import PromptCalibration
from prober.workload.workloads import RequestGenerator

MAX_LINES, LINES_NS = (
    4,
    300 * 10**9,
)  # logged changes per state and time, so that flapping has 52 lines an hour
FIRST_ANSWER_INTERVAL_S = 2.0  # between checks of a target that refuses connections and has never answered
Observer = TypeVar("Observer", bound=TargetObserver)
log = logging.getLogger(__name__)


@dataclass(slots=True)
class RunnerContext:
    """Parts of the prober that the runners of all targets share.

    features: in the order in which observers are called
    forget: removes all series of a target's name
    instance: name of this prober, so that the schedules of two probers differ
    end_notice_s: seconds after a server's end within which it may still be announced; 0: ends are not announced
    has_answered_before: returns True if the target answered an earlier process, so that a refused connection is a failure
    """

    clock: Clock
    events: EventLog
    features: Sequence[MakeObserver]
    forget: Callable[[str], None]
    instance: str
    budgets: BudgetKeeper
    supervisor: Supervisor
    end_notice_s: float = 0.0
    has_answered_before: Callable[[Target], bool] = lambda _: False


class TargetRunner:
    """Probes a target under one name, fixed by its configuration, until it is removed.

    former: the target with its former configuration, already drained
    """

    def __init__(self, spec: TargetSpec, context: RunnerContext, former: Target | None = None) -> None:
        self.target = Target(spec, context.clock)
        self.target.waiting_since_ns = context.clock.now_ns()
        self.target.prompt_calibration = PromptCalibration() if spec.warmup else None
        self.target.has_answered = context.has_answered_before(self.target)
        if former is not None:
            self.target.follow(former)
        self._context = context
        self._logged_state, self._logged_token_problem = self.target.state, ""
        self._logged_workloads: dict[str, TargetState] = {}  # those unlike their target
        self._logged_ns: dict[str, deque[int]] = {}  # latest lines per workload; "": the target
        self.first_answers: FirstAnswers | None = None  # if its first answer is part of a common event
        self._start: asyncio.TimerHandle | None = None
        self._schedules: list[asyncio.Task[None]] = []
        self._launches: dict[str, Callable[[int], None]] = {}  # by workload: starts a due probe
        self._probes: set[asyncio.Task[None]] = set()
        context.budgets.enter(self.target)
        self._observed = ObservedTarget(self.target, context.features)
        self._show_state()

    @property
    def spec(self) -> TargetSpec:
        """The target's configuration, fixed for this runner."""
        return self.target.spec

    @property
    def name(self) -> str:
        """The name in its series."""
        return self.spec.key

    def find(self, kind: type[Observer]) -> Observer | None:
        """The observer of this kind; None if the feature ignores the target."""
        return self._observed.find(kind)

    def summary(self) -> dict[str, Any]:
        """Values from all observers' `summary`."""
        return self._observed.summary()

    def start(self, pause_s: float = 0.0) -> None:
        """Start all schedules after `pause_s` seconds. The first probe of each is due immediately, as warm-up."""
        if pause_s > 0:
            self._start = asyncio.get_running_loop().call_later(pause_s, self._begin)
        else:
            self._begin()

    async def stop(self, drain_s: float) -> None:
        """End the schedules, let running probes end within `drain_s` seconds, and cancel the rest."""
        if self._start is not None:
            self._start.cancel()
        self._observed.stopped()
        for schedule in self._schedules:
            schedule.cancel()
        await asyncio.gather(*self._schedules, return_exceptions=True)
        if self._probes:
            _, late = await asyncio.wait(self._probes, timeout=drain_s)
            for probe in late:
                probe.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def remove(self) -> None:
        """Remove the target's series and its observers."""
        self._context.budgets.leave(self.target)
        self._observed.removed()
        self._context.forget(self.name)

    def pause(self, unix_s: float | None) -> None:
        """Stop sending; running probes end normally. unix_s: begin of the pause; None: send again"""
        if (unix_s is None) == (self.target.paused_unix_s is None):
            return
        self.target.paused_unix_s = unix_s
        if unix_s is not None:
            self._observed.paused()
        text = "paused on request" if unix_s is not None else "resumed on request"
        self._record(text, text)

    def end(self, is_ending: bool) -> None:
        """Stop sending, because the server's end is announced; running probes may fail without counting. False: send again"""
        if is_ending == self.target.is_ending:
            return
        self.target.end(is_ending)
        if is_ending:
            self._observed.paused()
        self._show_state()
        self._log_changes(None)

    def record(self, result: ProbeResult) -> None:
        """Pass the result of a scheduled probe to all observers. Many may end in one turn of the event loop."""
        result = replace(result, target=self.name)
        self._observed.probe_ended(result)
        self._show_state()
        if result.outcome in BAD or result.outcome in NEUTRAL:
            text = "target=%s workload=%s outcome=%s trace_id=%s %s"
            log.debug(text, self.name, result.workload, result.outcome, result.trace_id, result.detail)

    def gpus_read(self, devices: Sequence[GpuReading], driver: str) -> None:
        """Pass a reading of the GPUs that serve the target to its observers."""
        self._observed.gpus_read(devices, driver)

    def starting_since_and_until_unix_s(self) -> tuple[float, float] | None:
        """(since when the target is awaited while it refuses connections, when that becomes a failure); None for others."""
        target, clock = self.target, self._context.clock
        until_ns = target.starting_until_ns
        if not target.is_refusing or until_ns is None or target.waiting_since_ns is None:
            return None
        since_s, until_s = (
            clock.unix_s() + (at_ns - clock.now_ns()) / 1e9 for at_ns in (target.waiting_since_ns, until_ns)
        )
        return float(round(since_s)), float(round(until_s))

    def _begin(self) -> None:
        for probe in self.target.spec.probes:
            self._supervise("schedule", partial(self._run, probe))
        self._supervise("first_answer", self._await_first_answer)
        self._observed.started()

    def _supervise(self, task: str, work: Callable[[], Awaitable[None]]) -> None:
        self._schedules.append(self._context.supervisor.start(task, work, f"target={self.name}"))

    def _show_state(self) -> None:
        start = self.starting_since_and_until_unix_s()
        self._observed.state_seen(self.target.state, start[1] if start else None, self.target.workloads.values())

    async def _await_first_answer(self) -> None:
        """Check a target that has refused connections since its start every few seconds; probe it once it answers."""
        target, was_refused = self.target, False
        while target.starting_until_ns is not None or target.is_refusing:
            await asyncio.sleep(FIRST_ANSWER_INTERVAL_S)
            if target.is_refusing and target.paused_unix_s is None:
                was_refused = True
                await target.awake()
                self._process(None)
        if was_refused and target.has_answered:
            lead_ns = round(target.spec.connect_lead * 1e9)
            for launch in self._launches.values():
                launch(self._context.clock.now_ns() + lead_ns)

    async def _run(self, probe: ProbeSpec) -> None:
        clock = self._context.clock
        rng = Random(derive_seed(self._context.instance, self.target.spec.key, probe.workload.name))
        drawer = RequestGenerator(probe.workload, rng)
        start = clock.now_ns()
        schedule: Iterable[int] = due_times(probe, rng, start)
        if self.target.state is TargetState.PENDING:
            schedule = chain([start], schedule)

        def launch(due_ns: int) -> None:
            if self.target.paused_unix_s is not None:
                return
            if why := why_missed(due_ns, clock.now_ns()):  # too late: draw nothing for it
                self._process(unsent(due_ns, Outcome.INVALID, why, probe.workload.series[0]))
                return
            task = asyncio.create_task(self._probe(probe, drawer, due_ns))
            self._probes.add(task)
            task.add_done_callback(self._probes.discard)

        self._launches[probe.workload.name] = launch
        await pace(schedule, clock, self.target.spec, launch)

    async def _probe(self, probe: ProbeSpec, drawer: RequestGenerator, due_ns: int) -> None:
        try:
            result = await run_probe(self.target, drawer, due_ns)
        except asyncio.CancelledError:
            result = unsent(due_ns, Outcome.CANCELLED, "the prober ended it", probe.workload.series[0])
        except Exception:
            log.exception("target=%s: a probe failed inside the prober; please report this", self.name)
            detail = "a fault inside the prober; please report it with the trace in the log"
            result = unsent(due_ns, Outcome.INVALID, detail, probe.workload.series[0])
        if result is not None and result.outcome in BAD:
            # Its server may have ended, and the announcement may follow.
            if Trait.SERVER_ENDS in result.outcome.traits and self._context.end_notice_s and not self.target.is_ending:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(self._context.end_notice_s)
            if self.target.is_ending or self.target.state is TargetState.ASLEEP:
                why = "its server was being ended" if self.target.is_ending else "its engine was asleep"
                detail = f"{why}: {result.outcome} {result.detail}".rstrip()
                result = replace(result, outcome=Outcome.CANCELLED, detail=detail)
        self._process(result)

    def _process(self, result: ProbeResult | None) -> None:
        """Record a result (None: nothing was sent) and update the state. Exceptions are logged, and the schedule continues."""
        try:
            if result is not None:
                self.record(result)
            if result is None:
                self._show_state()
            self._log_changes(result)
        except Exception:
            log.exception("target=%s: a result or the state could not be recorded; please report this", self.name)

    def _log_changes(self, result: ProbeResult | None) -> None:
        """Log changes of the state, workloads that begin or cease to lack data, and problems of the token file.

        A workload has its own line only if another workload is answered or fails. If none has data, the target's state says so.
        """
        target = self.target
        if target.state != self._logged_state and self._may_log(""):
            text = f"{target.state}, was {self._logged_state}: {target.reason}".removesuffix(": ")
            self._logged_state, group = target.state, self.first_answers
            if group is None or not group.include(self.name, target.state):
                example = result if target.state is not TargetState.READY else None
                self._record(f"is {text}", text, example.trace_id if example is not None else "")
        is_beside = result is not None and result.outcome not in NEUTRAL
        for known in target.workloads.values():
            before, state = self._logged_workloads.get(known.workload, TargetState.READY), known.state
            begins = is_beside and state in NO_DATA_STATES and state not in (before, target.state)
            ends = before in NO_DATA_STATES and state in (TargetState.READY, TargetState.FAILING)
            if (begins or ends) and self._may_log(known.workload):
                self._logged_workloads[known.workload] = state
                text = f"workload {known.workload} is {state}, was {before}: {known.reason}".removesuffix(": ")
                self._record(text, text)
        problem = target.endpoint.secret.problem if target.endpoint.secret else ""
        if problem != self._logged_token_problem:
            self._logged_token_problem = problem
            log.warning("target=%s: %s", self.name, problem or "the token file is readable again")

    def _may_log(self, workload: str) -> bool:
        """True if the state has not changed too often lately; counts a line then. A suppressed state is logged later."""
        lines, now_ns = self._logged_ns.setdefault(workload, deque(maxlen=MAX_LINES)), self._context.clock.now_ns()
        if len(lines) == MAX_LINES and now_ns - lines[0] < LINES_NS:
            return False
        lines.append(now_ns)
        return True

    def _record(self, line: str, text: str, trace_id: str = "") -> None:
        """Record an event of the target. line: its text in the log; trace_id: that of a probe which shows it"""
        event = TargetEvent(self._context.clock.unix_s(), self.name, "state", text, trace_id=trace_id)
        self._context.events.record(log, event, line)
