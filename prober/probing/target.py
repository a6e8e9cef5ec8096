"""State of a target: identity of its engine, readiness, and remaining budgets."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from traceback import format_exception
from typing import Protocol

from prober.config.target import TargetSpec
from prober.measure.api import CHAT
from prober.measure.chat import OTHER_LIMIT, Dialect
from prober.measure.engines import DIALECTS, GENERIC, detect
from prober.measure.objective import promql
from prober.measure.outcome import Outcome, Verdict, classify_status
from prober.measure.payload import json_object
from prober.measure.printable import MAX_NAME_CHARS, shown_name
from prober.measure.result import ProbeResult
from prober.measure.target_state import (
    DEFAULT_IDLE_NS,
    NO_DATA_STATES,
    SILENT_STATES,
    STATE_OF_OUTCOME,
    TargetState,
    WarmUp,
    WorkloadState,
)
from prober.net.clock import Clock
from prober.net.connection import Broken, connect
from prober.net.endpoint import Endpoint, endpoint
from prober.net.exchange import Exchange
from prober.probing.pacer import ConnectLead
from prober.workload.budget import Budget, BudgetDemand
from prober.workload.prompt_length import PromptCalibration

HEALTH_EVERY_NS = 1_000_000_000
HEALTH_TIMEOUT_S = 2.0
MODELS_TIMEOUT_S = 10.0
FIRST_PROBE_DELAY_S = 2.0  # by a look-up only for the dialect; then a configured model is probed without it
MIN_LOOK_UP_PAUSE_NS, MAX_LOOK_UP_PAUSE_NS = 10**9, 600 * 10**9  # between look-ups in parallel with probes
NO_LIST = (403, 404, 405, 410, 501)  # from servers without a list of models, or that hide it
SET_MODEL = "; set `model`"
MAX_HEALTH_BYTES, MAX_MODELS_BYTES = 64 << 10, 256 << 10
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a target: id of its model for requests, dialect of its engine, base path of its API.

    shown: the model's id without secrets; "" if there is none
    """

    model: str
    dialect: Dialect
    base_path: str
    shown: str = ""

    @property
    def name(self) -> str:
        """The model's id for display and comparison."""
        return shown_name(self.shown or self.model)


class InFlight(Protocol):
    """A request past its due time. is_late: the prober sent it late"""

    is_late: bool

    def read_arrived(self) -> None:
        """Read what has arrived, and free the slot if the answer has ended."""


class BudgetKeeper(Protocol):
    """Stores the spending of targets, so that it survives their removal and a restart."""

    def enter(self, target: "Target") -> None:
        """Add a target and restore its earlier spending."""

    def leave(self, target: "Target") -> None:
        """Remove a target."""


class Target:
    """State of one target across its probes.

    identity: result of the last look-up; None before the first
    unidentified: why the last look-up found no identity; None if it did
    waiting_since_ns: since when the daemon waits for the first answer: refused connections may mean that the target is starting; None:
    they are always failures, as in a single experiment
    has_answered: it has answered an HTTP request with any status, perhaps to an earlier process, if that is stored
    is_refusing: its state is `starting`, because it refuses connections and has never answered
    reason: why the state is not `ready`, from a probe or the health page; "" if it is
    is_ending: the end of its server is announced: the state is `draining`, and failures do not count
    refused_fields: request fields that the target refused, which are no longer sent; shared with copies (`beside`)
    worker: number of this process if it is a worker; 0: the prober
    prompt_calibration: calibration by its first requests, sample prompts; None: no samples, a word counts as a token
    """

    def __init__(self, spec: TargetSpec, clock: Clock) -> None:
        self.spec = spec
        self.endpoint: Endpoint = endpoint(spec)
        self.clock = clock
        self.worker = 0
        self.refused_fields: set[str] = set()
        self.identity: Identity | None = None
        self.unidentified: Verdict | None = None
        self.state, self.reason = TargetState.PENDING, ""
        self.workloads = {name: WorkloadState(name) for probe in spec.probes for name in probe.workload.series}
        # By schedule: workloads whose probes are sent even if others are refused, so without later turns of sessions.
        self._leading_workloads = [
            {name for name, part, _ in probe.workload.shares() if part.turns == 1 or name == part.series[0]}
            for probe in spec.probes
        ]
        self.paused_unix_s: float | None = None  # begin of the pause: no probes, no sweeps
        self.in_flight: set[InFlight] = set()
        self.check_turn = asyncio.Lock()  # held while an answer is checked
        slowest = min((probe.rate for probe in spec.probes), default=1.0)
        self.warm_up = WarmUp(spec.warmup, max(DEFAULT_IDLE_NS, round(3e9 / slowest)))
        self.prompt_calibration: PromptCalibration | None = None
        self.connect_lead = ConnectLead()
        self.budgets: dict[str, Budget] = {}
        limits = {"tokens": spec.budget.tokens_per_day, "cost": spec.budget.cost_per_day} if spec.budget else {}
        for kind, limit in limits.items():
            if limit:
                self.budgets[kind] = Budget(limit)
        self.protected_demand: Mapping[str, BudgetDemand] = {}  # by budget; not available to requests
        self._answers = WorkloadState("")  # of all workloads: whether they are answered
        self._last_outcome: Outcome | None = None
        self._was_ready = False
        self._is_doubtful = False  # identity not from the target, or perhaps outdated
        self._looked_up_ns: int | None = None  # end of the last look-up
        self._look_up_pause_ns = MIN_LOOK_UP_PAUSE_NS
        self._identifying: asyncio.Task[Verdict | None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._preparing: asyncio.Task[int] | None = None
        self._health_ns = 0
        self._is_told_of_models = False
        self.waiting_since_ns: int | None = None
        self.has_answered = False
        self.is_refusing = False
        self.is_ending = False

    @property
    def starting_until_ns(self) -> int | None:
        """When refused connections start to count as failures; None if they do already."""
        if self.waiting_since_ns is None or self.has_answered:
            return None
        until_ns = self.waiting_since_ns + round(self.spec.starting_timeout * 1e9)
        return until_ns if self.clock.now_ns() < until_ns else None

    def end(self, is_ending: bool) -> None:
        """Set whether the end of the server is announced."""
        self.is_ending, self._answers = is_ending, WorkloadState("")
        self.state, self.reason = TargetState.PENDING, ""
        if is_ending:
            self.state, self.reason = TargetState.DRAINING, "its server is being ended"

    def sleeps(self, is_asleep: bool) -> None:
        """Set whether the engine's page says that it sleeps."""
        if is_asleep and not self.is_ending:
            self._answers = WorkloadState("")
            self.state, self.reason = TargetState.ASLEEP, "its metrics page says so"
        elif self.state is TargetState.ASLEEP:
            self.state, self.reason = TargetState.PENDING, ""
            self.warm_up.restarted()

    def follow(self, former: "Target") -> None:
        """Take over from the target before a reload: its pause, and what is known of the server at this address."""
        self.paused_unix_s = former.paused_unix_s
        if (self.endpoint.host, self.endpoint.port) == (former.endpoint.host, former.endpoint.port):
            self.waiting_since_ns, self.has_answered = former.waiting_since_ns, former.has_answered

    def beside(self) -> "Target":
        """Copy for a probe outside the schedule. It uses no slot of this target and leaves state and warm-up unchanged."""
        other = copy(self)
        other.in_flight, other.warm_up = set(), WarmUp(0)
        other.workloads, other._leading_workloads, other._answers = {}, [], WorkloadState("")
        other._identifying = other._asking = other._preparing = None
        if self.prompt_calibration is not None and self.prompt_calibration.is_due:
            other.prompt_calibration = None  # the probe is no sample prompt
        other.identity, other._is_doubtful = self.probed_identity, False  # no look-up in parallel with its probe
        return other

    @property
    def probed_identity(self) -> Identity | None:
        """Identity for a probe: from the last look-up, or else the configuration; None if the model is unknown."""
        if self.identity is not None or self.spec.model is None:
            return self.identity
        return Identity(self.spec.model, self._dialect, self.endpoint.base_path)

    @property
    def _dialect(self) -> Dialect:
        """Dialect from the last look-up, or else of the configured engine."""
        return self.identity.dialect if self.identity else DIALECTS.get(self.spec.engine or "", GENERIC)

    async def prepare(self, due_ns: int) -> int:
        """Look the target up if the probe due at `due_ns` needs it. Returns its due time, later if it passed meanwhile.

        The health check comes first if the target is new, loading or draining, and the list of models if no model is known. With a
        configured model, the list is requested once before the first probe, with a short timeout, to learn engine and path. A due time
        that passes meanwhile is moved by the duration of the look-up, which is not the target's fault.
        """
        if not self._is_asked_first and not self._is_looked_up_first:
            await self.awake()
            return due_ns
        if self._preparing is None or self._preparing.done():
            self._preparing = asyncio.create_task(self._prepare())
        began_ns = await asyncio.shield(self._preparing)
        now_ns = self.clock.now_ns()
        return due_ns if due_ns > now_ns else due_ns + now_ns - began_ns

    async def identify(self) -> Verdict | None:
        """Look up model, engine and base path once. Returns a verdict if that fails. Concurrent callers share one attempt.

        A configured model needs no list of models: the only failure then is that no connection can be opened.
        """
        if self.identity is not None:
            return None
        return await asyncio.shield(self._look_up())

    async def awake(self) -> bool:
        """False while the engine reports that it loads or shuts down, or does not listen yet.

        A target that answers, even with a refusal, gets no health check. A failing one is checked in parallel with its probes;
        a new, loading or draining one is checked before its probes.
        """
        if self.is_ending:
            return False
        if (self.state is TargetState.READY or self.state in NO_DATA_STATES) and (
            self._answers.latest is not TargetState.FAILING
        ):
            return True
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_health())
        if self._is_asked_first:
            await asyncio.shield(self._asking)
        return self.state not in SILENT_STATES

    def probed(self, result: ProbeResult) -> None:
        """Process the end of a scheduled probe: update the state, and start a due look-up in parallel with probes."""
        self.has_answered = self.has_answered or result.timeline.headers_ns is not None
        self.ended(result)
        is_needed, last_ns = self.identity is None or self._is_doubtful, self._looked_up_ns
        if is_needed and (last_ns is None or self.clock.now_ns() - last_ns >= self._look_up_pause_ns):
            self._look_up().add_done_callback(self._log_fault)

    def ended(self, result: ProbeResult) -> None:
        """Update the state after a scheduled probe, unless the end of the server is announced.

        The target has no data if none of its workloads has any. When it answers again, workloads in the same state return to
        `pending`.
        """
        outcome, end = result.outcome, STATE_OF_OUTCOME.get(result.outcome)
        if self.is_ending or end is None or self.state is TargetState.ASLEEP:
            return
        reason = result.detail if end in NO_DATA_STATES else f"{outcome}: {result.detail}"
        if outcome is Outcome.CONNECT_REFUSED and self.has_answered:
            reason += "; it has answered before, so this is an outage and no start"
        reason, now_ns, before = "" if end is TargetState.READY else reason, self.clock.now_ns(), self.state
        workload = self.workloads.setdefault(result.workload, WorkloadState(result.workload))
        workload.ended(end, reason, now_ns)
        if end not in NO_DATA_STATES:
            self._answers.ended(end, reason, now_ns)
        if (no_data_state := self._no_data_state()) is not None:
            self.state = no_data_state
        elif self._answers.state is not TargetState.PENDING:
            self.state = self._answers.state
        if self.state is TargetState.READY:
            self.reason = ""
        elif end is not TargetState.READY and self.state in (end, TargetState.PENDING):
            self.reason = reason
        if self.state is not before and self.state is TargetState.READY:
            for workload in self.workloads.values():
                if workload.state is before:
                    workload.doubt()
        elif self.state is not before and self.state in NO_DATA_STATES:
            self._answers = WorkloadState("")
        self._learn(outcome, end, before)

    def _learn(self, outcome: Outcome, end: TargetState, before: TargetState) -> None:
        """Update warm-up and identity after a probe. end: state that the outcome indicates; before: earlier state"""
        if end is TargetState.READY:
            self._was_ready = True
            self._look_up_pause_ns = MIN_LOOK_UP_PAUSE_NS if before is TargetState.FAILING else self._look_up_pause_ns
        if outcome in (Outcome.CONNECT_REFUSED, Outcome.RESET) or (end is self.state is TargetState.FAILING):
            self.warm_up.restarted()  # it was away: the next answers may come from a cold engine
        is_new_404 = outcome is Outcome.HTTP_404 and self._last_outcome is not Outcome.HTTP_404
        is_new_failure = self.state is TargetState.FAILING is not before  # it may return with another model
        if outcome is Outcome.HTTP_404 or is_new_failure:
            self._is_doubtful = True
            if is_new_404 or is_new_failure:  # look it up soon
                self._look_up_pause_ns = MIN_LOOK_UP_PAUSE_NS
        self._last_outcome = outcome

    def _no_data_state(self) -> TargetState | None:
        """Worst state of the workloads if no schedule has data, else None. `pending` ones are ignored, as they may be rare."""
        schedules = [
            {self.workloads[name].state for name in names} - {TargetState.PENDING} for names in self._leading_workloads
        ]
        if not schedules or not all(states and states <= NO_DATA_STATES for states in schedules):
            return None
        return TargetState.REJECTED if TargetState.REJECTED in set().union(*schedules) else TargetState.OVER_BUDGET

    def learn_refusal(self, words: str) -> bool:
        """True if a refusal shows that another field must limit the answer; all later requests then use it."""
        is_meant = self.spec.api == CHAT.name and OTHER_LIMIT.search(words) is not None
        is_new = is_meant and "max_tokens" not in self.refused_fields
        if is_new and not self.worker:
            self.refused_fields.add("max_tokens")
            log.warning(
                "target=%s: it refuses max_tokens; from now on requests have max_completion_tokens", self.spec.key
            )
        return is_new

    def closed_idle(self, idle_ns: int) -> None:
        """Record that the server closed a connection that was idle before its probe was due."""
        now_ns = self.clock.now_ns()
        if self.connect_lead.closed(idle_ns, now_ns):
            lead_s = (self.connect_lead.learnt_ns(now_ns) or 0) / 1e9
            log.info(
                "target=%s: its server closes idle connections (after %.3g s); for an hour probes connect %.3g s before they are due",
                self.spec.key,
                idle_ns / 1e9,
                lead_s,
            )

    def reserve(self, prompt_tokens: int, output_tokens: int) -> tuple[dict[str, float], int] | None:
        """Reserve for a request: (amounts by budget, time in ns); None, without a reservation, if a budget has too little."""
        now, amounts, reserved = self.clock.now_ns(), self.amounts(prompt_tokens, output_tokens), dict[str, float]()
        is_complete = False
        try:
            for kind, budget in self.budgets.items():
                if not budget.reserve(amounts[kind], now, self.protected_demand.get(kind)):
                    return None
                reserved[kind] = amounts[kind]
            is_complete = True
            return reserved, now
        finally:
            if not is_complete:
                for kind, amount in reserved.items():
                    self.budgets[kind].settle(amount, 0.0, now)

    def lacking(self, prompt_tokens: int, output_tokens: int) -> str | None:
        """The budget, "tokens" or "cost", with too little left for a request; None if all have enough."""
        now, amounts = self.clock.now_ns(), self.amounts(prompt_tokens, output_tokens)
        demand = {kind: self.protected_demand.get(kind, BudgetDemand()) for kind in self.budgets}
        lacking = (kind for kind, budget in self.budgets.items() if amounts[kind] > budget.available(now, demand[kind]))
        return next(lacking, None)

    def settle(self, reserved: tuple[dict[str, float], int], prompt_tokens: int, output_tokens: int) -> None:
        """Replace the reserved amounts by those of the used tokens."""
        used, (amounts, at_ns) = self.amounts(prompt_tokens, output_tokens), reserved
        for kind, amount in amounts.items():
            self.budgets[kind].settle(amount, used[kind], at_ns)

    def unreadable(self, sent: str, problem: Exception) -> Verdict:
        """Verdict on data that the prober failed to read, which only the target's data can cause. Logs the trace without secrets."""
        trace = kind = type(problem).__name__
        with suppress(Exception):
            trace = self.endpoint.redactor.redact("".join(format_exception(problem)))
        log.error("target=%s: %s could not be read; please report this: %s", self.spec.key, sent, trace)
        detail = f"the prober failed to read this answer ({kind}); please report it with the trace in the log"
        return Verdict(Outcome.MALFORMED, detail)

    def amounts(self, prompt_tokens: int, output_tokens: int) -> dict[str, float]:
        """{budget: tokens or dollars} that a request costs."""
        cost = self.spec.budget.dollars(prompt_tokens, output_tokens) if self.spec.budget else 0.0
        return {"tokens": float(prompt_tokens + output_tokens), "cost": cost}

    @property
    def _is_asked_first(self) -> bool:
        """True if the next probe waits for a health check."""
        return self.state is TargetState.PENDING or self.state in SILENT_STATES or self.starting_until_ns is not None

    @property
    def _is_looked_up_first(self) -> bool:
        """True if the next probe waits for a look-up: the model is unknown, or no look-up has completed the configuration."""
        if self.identity is not None or self.spec.model is None:
            return self.identity is None
        is_complete = self.spec.engine is not None and self.endpoint.base_path.endswith("/v1")
        return self._looked_up_ns is None and not is_complete

    async def _prepare(self) -> int:
        """Do the health check and look-up for which the next probe waits. Returns the time in ns at which they began."""
        began_ns = self.clock.now_ns()
        if await self.awake() and self._is_looked_up_first:
            await asyncio.shield(self._look_up(MODELS_TIMEOUT_S if self.spec.model is None else FIRST_PROBE_DELAY_S))
        return began_ns

    def _look_up(self, timeout_s: float = MODELS_TIMEOUT_S) -> asyncio.Task[Verdict | None]:
        """The task of the running look-up, or of a new one."""
        if self._identifying is None or self._identifying.done():
            self._identifying = asyncio.create_task(self._identify(timeout_s))
        return self._identifying

    def _log_fault(self, look_up: asyncio.Task[Verdict | None]) -> None:
        if not look_up.cancelled() and (problem := look_up.exception()) is not None:
            text = "target=%s: a look-up failed inside the prober; please report this"
            log.error(text, self.spec.key, exc_info=problem)

    async def _ask_health(self) -> None:
        """Set the state from the health page: starting or draining if the engine says so; other faults are left to the probes.

        A target that refuses connections and has never answered is starting until `starting_timeout` has passed.
        """
        now = self.clock.now_ns()
        is_known = self.identity is not None or self.spec.engine in DIALECTS
        health = self._dialect.health if is_known else "/health"
        path = None if health is None else self.endpoint.base_path.removesuffix("/v1") + health
        is_of_use = path is not None or self.starting_until_ns is not None or self.is_refusing
        if not is_of_use or now - self._health_ns < HEALTH_EVERY_NS:
            return
        self._health_ns = now
        status: int | None = None
        body, is_refused = "", False
        try:
            answer = await self._get(path, HEALTH_TIMEOUT_S, MAX_HEALTH_BYTES)
            status, body = answer.status, answer.body[:2000].decode("utf-8", "replace").lower()
        except Broken as broken:
            is_refused = broken.is_refused
        if self.is_ending:
            return
        self.is_refusing = is_refused and self.starting_until_ns is not None
        if self.is_refusing:
            limit = promql(self.spec.starting_timeout)
            reason = f"refuses connections; counted as failures after {limit} (starting_timeout)"
            self.state, self.reason = TargetState.STARTING, reason
        elif status == 503 and any(word in body for word in ("draining", "shutting down", "shutdown")):
            self.state, self.reason = TargetState.DRAINING, "its health page says so"
        elif status == 503 and (
            "loading" in body or "starting" in body or (self._dialect.listens_while_loading and not self._was_ready)
        ):
            self.state, self.reason = TargetState.STARTING, "its health page says so"
        elif self.state in SILENT_STATES - {TargetState.ASLEEP}:
            self.state, self.reason = TargetState.PENDING, ""
            self.warm_up.restarted()
        if self.state in SILENT_STATES:
            self._answers = WorkloadState("")

    async def _get(self, path: str | None, timeout_s: float, max_bytes: int) -> Exchange:
        """GET a path of the server with the target's headers, token, certificates and proxy. `path` None: only connect.

        Raises Broken if no connection can be opened.
        """
        exchange = Exchange(None, self.clock, max_bytes)
        timeouts = self.spec.timeouts.model_copy(update={"total": timeout_s})
        token = self.endpoint.token()
        try:
            await connect(self.endpoint, exchange, min(timeout_s, timeouts.connect))
            if path is not None:
                head = self.endpoint.head(
                    "GET", path, length=0, request_id=f"slo-probe-{self.clock.now_ns():x}", token=token
                )
                exchange.send(head, timeouts)
                await exchange.ended
        except Exception as problem:
            if not exchange.received:
                raise
            exchange.status, exchange.broken = None, self.unreadable(f"the answer to GET {path}", problem)
        finally:
            exchange.abort()
        self.has_answered = self.has_answered or exchange.status is not None
        return exchange

    async def _identify(self, timeout_s: float) -> Verdict | None:
        """Look the target up. If the answers have no identity, keep the known one."""
        try:
            looked_up = await self._ask_models(timeout_s)
        finally:
            self._looked_up_ns = self.clock.now_ns()
        self._look_up_pause_ns = min(2 * self._look_up_pause_ns, MAX_LOOK_UP_PAUSE_NS)
        self.unidentified, self._is_doubtful = None, not isinstance(looked_up, Identity)
        if isinstance(looked_up, Identity):
            if self.prompt_calibration and self.identity and self.identity.model != looked_up.model:
                self.prompt_calibration = PromptCalibration()
            self.identity = looked_up
        elif looked_up is None or self.identity is not None:
            self.identity = self.probed_identity
        else:
            self.unidentified = looked_up
        return self.unidentified

    async def _ask_models(self, timeout_s: float) -> Identity | Verdict | None:
        """Identity from the list of models, or why there is none; None if the list is useless but the model is configured."""
        base, verdict, is_connected, remedy = self.endpoint.base_path, None, True, ""
        for path in dict.fromkeys((base, f"{base}/v1" if not base.endswith("/v1") else base)):
            try:
                answer = await self._get(f"{path}/models", timeout_s, MAX_MODELS_BYTES)
            except Broken as broken:
                verdict, is_connected = broken.verdict, False
                break
            verdict = answer.broken or classify_status(answer.status or 0, answer.refusal)
            remedy = SET_MODEL if answer.is_too_long or answer.status in NO_LIST else ""
            if verdict is None:
                try:
                    identity = self._read(answer, path)
                except Exception as problem:
                    identity = self.unreadable("the list of models", problem)
                if isinstance(identity, Identity):
                    return identity
                verdict = identity
            elif verdict.outcome is not Outcome.HTTP_404:
                if answer.is_too_long and not self._is_told_of_models:
                    self._is_told_of_models = True
                    log.warning(
                        "target=%s: the list of models is not read: %s; set `model` and `engine`",
                        self.spec.key,
                        verdict.detail,
                    )
                break
        if self.spec.model is not None and is_connected:
            return None
        assert verdict is not None
        detail = f"GET {self.endpoint.authority}{base}/models: {verdict.detail}{remedy}"
        return Verdict(verdict.outcome, self.endpoint.redactor.redact(detail))

    def _read(self, answer: Exchange, path: str) -> Identity | Verdict:
        try:
            models = json_object(bytes(answer.body))["data"]
            if models == []:
                return Verdict(Outcome.MALFORMED, f"lists no model{SET_MODEL}")
            first = models[0]
            listed = [model["id"] for model in models]
        except (ValueError, KeyError, TypeError, IndexError):
            start = answer.body[:60].decode("utf-8", "replace")
            return Verdict(Outcome.MALFORMED, f"no list of models, but {start!r}; is the url that of the OpenAI API?")
        if problem := next(filter(None, map(_id_problem, listed)), ""):
            return Verdict(Outcome.MALFORMED, f"the list of models has an id {problem}; set `model` and `engine`")
        dialect = DIALECTS.get(self.spec.engine or "") or detect(first.get("owned_by"), answer.headers)
        model_id = self.spec.model
        if model_id is None and len(listed) > 1 and not all(model.get("parent") for model in models[1:]):
            names = ", ".join(map(shown_name, listed[:10]))
            return Verdict(Outcome.REJECTED, f"serves {len(listed)} models; set `model` to one of {names}")
        if model_id is not None:
            return Identity(model_id, dialect, path)
        shown = self.endpoint.redactor.redact(listed[0])
        return Identity(listed[0], dialect, path, "" if shown == listed[0] else shown)


def _id_problem(model_id: object) -> str:
    """Why a model's id cannot be sent, such as "of more than 300 characters"; "" if it can."""
    if not isinstance(model_id, str) or not shown_name(model_id):
        return "that is no text"
    if len(model_id) > MAX_NAME_CHARS:
        return f"of more than {MAX_NAME_CHARS} characters"
    try:
        model_id.encode()
    except UnicodeEncodeError:
        return "with half a surrogate pair"
    return ""
