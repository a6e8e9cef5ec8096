"""A probe, from its due time to its result."""

import asyncio
import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random

from prober.measure.api import APIS, CHAT
from prober.measure.chat import OPTIONAL_FIELDS, OTHER_LIMIT
from prober.measure.outcome import ANSWERED, ExpectedAnswer, Outcome, Trait, Verdict, access_remedy, checked, classify
from prober.measure.printable import printable, shown_name
from prober.measure.recording import Recording
from prober.measure.request import AssistantMessage, Drawer, Request, trace_ids
from prober.measure.result import ProbeResult, RetryKind
from prober.measure.server_timing import time_parts
from prober.measure.target_state import SILENT_STATES
from prober.measure.timeline import Connection, Timeline
from prober.net.connection import Broken, cert_expiry, connect
from prober.net.exchange import Exchange, requested_pause_s
from prober.probing.answer_checks import CheckUnavailable, answer_checks
from prober.probing.pacer import BUNCHED_S, MIN_IDLE_NS, why_missed
from prober.probing.target import Identity, Target
from prober.workload.prompt_length import PromptCalibration
from prober.workload.shapes import Fixed
from prober.workload.workloads import RequestGenerator, Workload

CACHED_SHARE = 0.10
CALIBRATION_LEAD_NS = 100_000_000
IDLE_TIMEOUT = 408  # status with which a server closes a connection without a request
MAX_RECONNECTIONS = 4  # of a probe whose connections are closed before its request is written
# Plus a round trip: a close this soon after the request has an earlier cause.
CROSSING_NS = 10_000_000
NOT_KEPT = AssistantMessage("assistant", "")  # stands for an answer that no later turn needs
SESSION_OVER = (
    "its session ends: the answer is far longer than asked for, or its tool calls are too many or no JSON objects"
)
# Headers with the server's id of a request: of OpenAI, vLLM and others; of Anthropic, also what LiteLLM passes on; of LiteLLM.
REQUEST_IDS = ("x-request-id", "request-id", "x-litellm-call-id")
MAX_ID_CHARS = 100  # OpenAI's has 36, a UUID with a prefix; memory of stored failures is limited
MAX_HEADER_DIGITS = 15  # of a number in a header: a longer one is no count of requests or tokens
RATE_LIMITS = {  # header → limit of `llmslo_rate_limit_remaining`
    **{f"x-ratelimit-remaining-{kind}": kind for kind in ("requests", "tokens")},
    **{
        f"anthropic-ratelimit-{kind}-remaining": kind.replace("-", "_")
        for kind in ("requests", "tokens", "input-tokens", "output-tokens")
    },
}
# Headers with a gateway's number of attempts: (kind, whether the first attempt counts). Sources: Envoy's router filter
# (`include_attempt_count_in_response`), LiteLLM's and Portkey's response headers, ngrok's AI gateway.
RETRIES: dict[str, tuple[RetryKind, bool]] = {
    "x-envoy-attempt-count": ("retry", True),
    "x-litellm-attempted-retries": ("retry", False),
    "x-litellm-attempted-fallbacks": ("fallback", False),
    "x-portkey-retry-attempt-count": ("retry", False),
    "ngrok-aig-attempts": ("retry", True),
}


def always() -> bool:
    """Return True: the default for `is_allowed`, which allows every request."""
    return True


async def run_probe(target: Target, drawer: Drawer, due_ns: int) -> ProbeResult | None:
    """Send one probe due at `due_ns` and return its result. While the engine loads or drains, send nothing and return None.

    Connects immediately. The request is sent at the due time, or when the connection is ready if that is later; this delay
    is the target's and counts in TTFT. Nothing is retried. Raises only faults of the prober before the first byte of the answer; an
    exception while reading the answer becomes the outcome `malformed`.

    No latency includes the prober's own look-ups: those that the first probe needs come before it and move its due time, all others
    run in parallel with probes.
    """
    due_ns = await target.prepare(due_ns)
    if target.state in SILENT_STATES:
        return None
    result = await LocalRun(target, await in_turn(target, new_request(target, drawer, due_ns)), has_trace=True).send()
    target.probed(result)
    return result


async def calibrate(target: Target) -> None:
    """Send sample prompts, one after the other, until the server's way to count tokens is known, or cannot be determined."""
    calibration = target.prompt_calibration = target.prompt_calibration or PromptCalibration()
    drawer = RequestGenerator(Workload("sample", Fixed(1), Fixed(1)), Random())
    while calibration.is_due:
        result = await run_probe(target, drawer, target.clock.now_ns() + CALIBRATION_LEAD_NS)
        if result is None:
            calibration.stop("the engine is loading or shutting down")
        elif result.outcome not in (*ANSWERED, Outcome.REJECTED):  # the probe itself stops if requests are refused
            calibration.stop(f"a sample prompt was not answered ({result.outcome.value})")


def new_request(target: Target, drawer: Drawer, due_ns: int) -> Request:
    """Draw the next request to this target."""
    return drawer.draw(uuid.uuid4().int >> 64, due_ns, target.prompt_calibration)


async def in_turn(target: Target, request: Request) -> Request:
    """Return the request, or if it is `busy`, another one once a session is ready, if there is still time to connect."""
    pool, latest_ns = request.busy, request.due_ns - target.connect_lead.set_up_ns
    if pool is None or target.clock.now_ns() >= latest_ns:
        return request
    woken = asyncio.Event()
    alarm = target.clock.call_at(latest_ns, woken.set)
    try:
        while request.busy is not None and target.clock.now_ns() < latest_ns:
            woken.clear()
            pool.waiting[woken] = woken.set
            await woken.wait()
            request = new_request(target, pool, request.due_ns)
        return request
    finally:
        alarm.cancel()
        pool.waiting.pop(woken, None)


class ProbeRun(ABC):
    """A running probe, with its budget, session and result. This process sends it, or a worker (`workers.WorkerRun`).

    is_allowed: called when the request is due; the request is sent only if it returns True
    answer: answer for the session's next turn; None if not needed, or if it cannot be sent again (`Answer.message`)
    first_ns: arrival of the first content; None before it
    late_ns: delay of sending caused by the prober, in no latency; 0 if not yet known
    """

    def __init__(self, target: Target, request: Request, is_allowed: Callable[[], bool] = always) -> None:
        if target.refused_fields:
            request = replace(request, sampling={**request.sampling, **dict.fromkeys(target.refused_fields)})
        self.request, self._target, self._is_allowed = request, target, is_allowed
        self._began_ns = target.clock.now_ns()
        self._unix_s = target.clock.unix_s() + (request.due_ns - self._began_ns) / 1e9

    async def send(self) -> ProbeResult:
        """Send the request and return its result. Its session continues with the answer, or ends without one.

        Raises exceptions of the prober before the first byte of the answer.
        """
        request, target = self.request, self._target
        reserved: tuple[dict[str, float], int] | None = None
        answer: AssistantMessage | None = None
        tokens: int | None = None
        try:
            if request.busy is not None:
                return self._completed(Verdict(Outcome.SHED, request.busy.busy_text))
            if why := why_missed(request.due_ns, self._began_ns):
                return self._result(Verdict(Outcome.INVALID, why), Timeline(request.due_ns))
            reserved = target.reserve(*request.tokens)
            if reserved is None:
                return self._completed(Verdict(Outcome.OVER_BUDGET, "the budget of the last 24 hours is used up"))
            result = await self._exchanged()
            if result.outcome in ANSWERED:
                answer, usage = self.answer if request.keeps_answer else NOT_KEPT, result.timeline.usage
                if usage is not None and usage.completion_tokens is not None:
                    tokens = usage.completion_tokens - (usage.reasoning_tokens or 0)
                if answer is None and request.keeps_answer:
                    result = replace(result, detail="; ".join(filter(None, (result.detail, SESSION_OVER))))
            return result
        finally:
            try:
                if reserved is not None and (charged := self._charged_tokens()) is not None:
                    target.settle(reserved, *charged)
            finally:
                if request.session is not None:
                    request.session.end_turn(answer, tokens)

    @property
    def is_traced(self) -> bool:
        """True if the request was sent with a `traceparent` of the prober."""
        return False

    @property
    @abstractmethod
    def answer(self) -> AssistantMessage | None: ...

    @property
    @abstractmethod
    def first_ns(self) -> int | None: ...

    @property
    @abstractmethod
    def late_ns(self) -> int: ...

    @abstractmethod
    async def _exchanged(self) -> ProbeResult:
        """Send the request, with tokens already reserved, and return its result."""

    @abstractmethod
    def delivered(self) -> Timeline:
        """Timeline of the answer so far, for an ended or a cut request."""

    @abstractmethod
    def _charged_tokens(self) -> tuple[int, int] | None:
        """(prompt tokens, output tokens) to charge to budgets; None if the full reservation may have been used."""

    def cut(self, outcome: Outcome, why: str, cut_ns: int | None = None) -> ProbeResult:
        """The result of a request that is cut, with what was delivered before."""
        return self._result(Verdict(outcome, why), replace(self.delivered(), cut_ns=cut_ns))

    def _completed(self, verdict: Verdict) -> ProbeResult:
        """The result of a request with this verdict."""
        return self._result(verdict, self.delivered())

    def _result(self, verdict: Verdict, timeline: Timeline) -> ProbeResult:
        """Build the result from request, verdict and timeline. Secrets in the verdict's text are redacted."""
        request, target = self.request, self._target
        return ProbeResult(
            *(target.spec.name or "", request.workload, request.request_id, self._unix_s, verdict.outcome),
            target.endpoint.redactor.redact(verdict.detail),
            timeline,
            requested_prompt_tokens=request.prompt_tokens,
            requested_output_tokens=request.output_tokens,
            check=request.expectation.kind if request.expectation else None,
            has_asked_length=request.has_asked_length,
            adapter=request.adapter,
            worker=target.worker,
            is_traced=self.is_traced,
        )


# Starts a probe: `LocalRun` in this process, `Workers.launch` in another.
Launch = Callable[[Target, Request, Callable[[], bool]], ProbeRun]


class LocalRun(ProbeRun):
    """A probe sent by the current process."""

    def __init__(
        self, target: Target, request: Request, is_allowed: Callable[[], bool] = always, *, has_trace: bool = False
    ) -> None:
        """has_trace: send `traceparent`, as configured. Requests of experiments have none: their receiver decides what it records."""
        super().__init__(target, request, is_allowed)
        self._api = APIS[target.spec.api]
        flags = {"sampled": "01", "unsampled": "00"}.get(target.spec.tracing.traceparent)
        self._traceparent = ""
        if has_trace and flags and not target.endpoint.has_own_trace:
            self._traceparent = "-".join(("00", *trace_ids(request.request_id), flags))
        self._recording = Recording(
            target.spec.stream,
            self._api,
            request.output_tokens,
            keeps_prose=request.expectation is not None or request.keeps_answer,
        )
        self._exchange = Exchange(self._recording, target.clock)
        self._identity: Identity | None = None
        self._connection: Connection | None = None
        self._sent = b""
        self.is_late = False  # sent by the prober over BUNCHED_S late, so together with others
        self._stopped: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()  # why it is not sent

    @property
    def is_traced(self) -> bool:
        return self._traceparent != "" and self._exchange.is_sent

    @property
    def answer(self) -> AssistantMessage | None:
        return self._recording.answer.message

    @property
    def first_ns(self) -> int | None:
        return self._recording.first_ns

    @property
    def late_ns(self) -> int:
        connection = self._exchange.connection
        sent_ns = connection.sent_ns if connection is not None else None
        return Timeline(self.request.due_ns, self._connection, sent_ns).origin_ns - self.request.due_ns

    async def _exchanged(self) -> ProbeResult:
        target = self._target
        try:
            work = asyncio.ensure_future(self._work())
            alarm: asyncio.TimerHandle | None = None
            try:
                alarm = target.clock.call_at(self.request.due_ns, self._at_due_time)
                await asyncio.wait((work, self._stopped), return_when=asyncio.FIRST_COMPLETED)
                return self._completed(work.result() if work.done() else self._stopped.result())
            finally:  # free slot, connection and task
                if alarm is not None:
                    alarm.cancel()
                target.in_flight.discard(self)
                try:  # first: cancelling `work` cancels the `ended` it awaits, and would leave the connection
                    if not self._exchange.ended.done():
                        self._exchange.abort()
                finally:
                    work.cancel()
        except Exception as problem:
            if not self._exchange.received:
                raise
            # The answer is not used.
            exchange, verdict = self._exchange, target.unreadable("the answer of a probe", problem)
            sent = Timeline(
                self.request.due_ns,
                self._connection,
                headers_ns=exchange.headers_ns,
                charged_tokens=self._charged_tokens(),
            )
            return self._result(verdict, exchange.departure(sent))

    def _at_due_time(self) -> None:
        """Send at the due time. The clock calls this for all targets, so exceptions go to this probe, not to the clock."""
        try:
            self._on_due()
        except Exception as problem:
            if not self._stopped.done():
                self._stopped.set_exception(problem)

    def _on_due(self) -> None:
        """Take a slot at the due time, or be shed without one; send if the connection is ready."""
        target, due_ns, now_ns = self._target, self.request.due_ns, self._target.clock.now_ns()
        cap = target.spec.max_in_flight
        if len(target.in_flight) >= cap:
            for run in tuple(target.in_flight):  # an arrived answer holds no slot
                run.read_arrived()
        full = f"{cap} probes were in flight already (max_in_flight)"
        if why := why_missed(due_ns, now_ns):
            self._stopped.set_result(Verdict(Outcome.INVALID, why))
            return
        self.is_late = now_ns - due_ns > BUNCHED_S * 1e9
        if len(target.in_flight) < cap:
            target.in_flight.add(self)
            self._send_if_ready()
        elif self.is_late or any(run.is_late for run in target.in_flight):
            self._stopped.set_result(
                Verdict(Outcome.INVALID, f"the prober itself was late, with several requests: {full}")
            )
        else:
            self._stopped.set_result(Verdict(Outcome.SHED, full))

    def read_arrived(self) -> None:
        """Read what has arrived, and free the slot if the answer has ended."""
        connection = self._exchange.connection
        while connection is not None and not self._exchange.ended.done() and connection.read():
            pass
        if self._exchange.is_sent and self._exchange.ended.done():
            self._target.in_flight.discard(self)

    def _send_if_ready(self) -> None:
        exchange = self._exchange
        if self in self._target.in_flight and self._sent and not exchange.is_sent and self._is_allowed():
            if exchange.status == IDLE_TIMEOUT:
                exchange.abort()
            assert self._connection is not None
            exchange.send(self._sent, self._target.spec.timeouts, self._connection.delay_ns)

    async def _work(self) -> Verdict:
        """Connect a lead before the due time, wait for the end of the answer, and judge it.

        A connection that the server closes because nothing was sent on it is opened again.
        """
        target = self._target
        identity = self._identity = target.probed_identity
        if identity is None:
            assert target.unidentified is not None, "the target was not looked up"
            return target.unidentified
        secret = target.endpoint.secret
        token = target.endpoint.token()
        if secret and token is None:
            return Verdict(Outcome.REJECTED, secret.problem)
        model = self.request.adapter or identity.model
        body = self._api.request_body(identity.dialect, self.request, model, target.spec.stream)
        path = f"{identity.base_path}/{self._api.path}"
        head = target.endpoint.head(
            *("POST", path),
            length=len(body),
            request_id=self.request.request_id,
            token=token,
            traceparent=self._traceparent,
        )
        lead_ns = round(target.spec.connect_lead * 1e9)
        for attempt in range(1 + MAX_RECONNECTIONS):
            learnt_ns = target.connect_lead.learnt_ns(target.clock.now_ns())
            if learnt_ns is not None:
                await target.clock.sleep_until(self.request.due_ns - learnt_ns)
                lead_ns = min(lead_ns, learnt_ns)
            try:
                self._connection = await connect(target.endpoint, self._exchange, target.spec.timeouts.connect, lead_ns)
            except Broken as broken:
                self._connection = broken.connection
                return broken.verdict
            target.connect_lead.connected((self._connection.ready_ns or 0) - self._connection.start_ns)
            self._sent, self._recording.answer.request_bytes = head + body, len(head + body)
            self._send_if_ready()
            await self._exchange.ended
            if attempt == MAX_RECONNECTIONS or not self._was_closed_idle():
                break
            self._sent, self._exchange = b"", Exchange(self._recording, target.clock)
            lead_ns = self.request.due_ns - target.clock.now_ns()
        return await self._judge(identity)

    def _was_closed_idle(self) -> bool:
        """True if the server closed the connection because nothing was sent on it: silently, or with status 408.

        The connect lead learns from this even if the request was sent meanwhile. The outcome remains the target's.
        """
        exchange, now_ns = self._exchange, self._target.clock.now_ns()
        is_refused = exchange.broken is not None and exchange.broken.outcome is Outcome.TLS
        if exchange.status not in (None, IDLE_TIMEOUT) or (exchange.status is None and exchange.received) or is_refused:
            return False
        assert self._connection is not None
        is_unsent = not exchange.is_sent
        sent_ns = exchange.connection.sent_ns if exchange.connection is not None else None
        idle_until_ns = (exchange.headers_ns if is_unsent else sent_ns) or now_ns
        idle_ns = idle_until_ns - (self._connection.ready_ns or 0)
        crossing_ns = CROSSING_NS + round((self._connection.tcp_s or 0.0) * 1e9)
        is_crossing = not is_unsent and now_ns - idle_until_ns <= crossing_ns
        if idle_ns < MIN_IDLE_NS or not (is_unsent or is_crossing):
            return False
        if is_unsent or self._target.connect_lead.learnt_ns(now_ns) is None:
            self._target.closed_idle(idle_ns)
        return is_unsent

    async def _judge(self, identity: Identity) -> Verdict:
        exchange, recording, request, target = self._exchange, self._recording, self.request, self._target
        dialect, answer = identity.dialect, recording.answer
        ending = recording.observed_end(
            transport_verdict=exchange.broken, status=exchange.status, status_detail=exchange.refusal
        )
        end_mark = self._api.end_event or ("[DONE]" if dialect.sends_done else "")
        is_forced = self._api.can_force_length and "ignore_eos" in dialect.force_length and request.is_length_forced
        verdict = classify(
            ending,
            ExpectedAnswer(
                end_mark if target.spec.stream else "",
                tokens=request.output_tokens,
                forced=is_forced,
            ),
        )
        if verdict.outcome is Outcome.OK and request.expectation is not None:
            problem = answer.length_problem or answer.call_problem
            try:
                if not problem:
                    async with target.check_turn:  # one at a time, so that no target fills the queue of all
                        problem = await answer_checks().problem(request.expectation, answer.prose, answer.calls)
                verdict = checked(verdict, ending, problem)
            except CheckUnavailable as unavailable:
                verdict = Verdict(Outcome.INVALID, f"the prober could not check the answer: {unavailable}")
        remedy = self._remedy(exchange.refusal) if verdict.outcome is Outcome.REJECTED else ""
        return replace(verdict, detail="; ".join(filter(None, (verdict.detail, answer.unusable_usage, remedy))))

    def _remedy(self, refusal: str) -> str:
        """How to configure the field that the server's refusal names; "" if it names none."""
        if self._api is CHAT and OTHER_LIMIT.search(refusal):
            return "the next request has that instead; `max_tokens: null` in `sampling` does it from the first one on"
        sampling = self.request.sampling
        patterns = {name: rf"\b{re.escape(name)}\b" for name, value in sampling.items() if value is not None}
        for name in OPTIONAL_FIELDS:  # ordinary words: only if a server names them as fields
            if name not in sampling and f'"{name}":'.encode() in self._sent:
                patterns[name] = rf"(^|; ){name}(\.\w+)*: |['\"`]{name}['\"`]"
        named = [f"`{name}: null`" for name, pattern in patterns.items() if re.search(pattern, refusal)]
        return f"{', '.join(named)} in `sampling` leaves it out" if named else ""

    def _attributed(self, verdict: Verdict) -> Verdict:
        """The verdict, or `invalid` if a standstill of the prober may be the cause."""
        if Trait.STANDSTILL not in verdict.outcome.traits or not self._target.clock.stood_still(self._began_ns):
            return verdict
        return Verdict(Outcome.INVALID, f"the prober itself stood still meanwhile, which may be why: {verdict.detail}")

    def delivered(self) -> Timeline:
        exchange = self._exchange
        timeline = Timeline(
            self.request.due_ns, connection=self._connection, headers_ns=exchange.headers_ns, end_ns=exchange.end_ns
        )
        timeline = self._recording.complete(exchange.departure(timeline))
        redact, reason, model = self._target.endpoint.redactor.redact, timeline.finish_reason, timeline.answered_model
        return replace(
            timeline,
            finish_reason=None if reason is None else redact(reason),
            answered_model=redact(model),
            charged_tokens=self._charged_tokens(),
            parts=time_parts(exchange.headers, self._recording.answer.timing, timeline.spans),
        )

    def _completed(self, verdict: Verdict) -> ProbeResult:
        target, draw = self._target, self.request
        timeline, verdict = self.delivered(), self._attributed(verdict)
        if verdict.outcome is Outcome.REJECTED and (
            remedy := access_remedy(verdict.detail, target.endpoint.key_setting)
        ):
            verdict = replace(verdict, detail=f"{verdict.detail}; {remedy}")
        identity = self._identity
        ok = verdict.outcome in ANSWERED
        usage = timeline.usage
        cached = usage.cached_tokens if usage else None
        is_lesson = verdict.outcome is Outcome.REJECTED and target.learn_refusal(verdict.detail)
        calibration, words = target.prompt_calibration, draw.sample_words
        if words is not None and calibration is not None and not is_lesson:
            if ok:
                calibration.answered(words, usage.prompt_tokens if usage else None, timeline.unusable_usage)
            elif verdict.outcome is Outcome.REJECTED:  # it is not sent again
                calibration.stop(f"the server refused a prompt of {words} words: {verdict.detail}")
        left = {
            kind: value
            for header, kind in RATE_LIMITS.items()
            if (value := header_number(self._exchange.headers, header)) is not None
        }
        return replace(
            self._result(verdict, timeline),
            model=identity.name if identity else "",
            engine=identity.dialect.name if identity else "",
            warm_up=ok and (words is not None or target.warm_up.record_success(target.clock.now_ns())),
            cached=ok
            and not draw.warm
            and bool(cached and usage and cached > CACHED_SHARE * (usage.prompt_tokens or 0)),
            text=printable(target.endpoint.redactor.redact(self._recording.answer.text)),
            rate_limit=left,
            retries=gateway_retries(self._exchange.headers),
            retry_after_s=None if ok else requested_pause_s(self._exchange.headers, target.clock.unix_s()),
            cert_expiry_unix_s=cert_expiry(self._exchange),
            server_request_id=target.endpoint.redactor.redact(
                server_request_id(self._exchange.headers, draw.request_id)
            ),
        )

    def _charged_tokens(self) -> tuple[int, int]:
        """(prompt tokens, output tokens) to charge to budgets: as in `usage`, or else the most that the answer may have cost.

        Unsent requests cost nothing, nor do answers without content and usage. A cut request costs its prompt
        and the received tokens. An answer without usage costs the requested tokens. A server's usage never charges more than
        the requested answer and the sent request.
        """
        exchange, answer, draw = self._exchange, self._recording.answer, self.request
        usage, received, has_ended = answer.usage, answer.max_received_tokens, answer.finish_reason is not None
        is_whole = exchange.end_ns is not None or (exchange.status or 0) >= 300
        if not exchange.is_sent or (is_whole and usage is None and not received):
            return 0, 0
        prompt, output = (None, None) if usage is None else (usage.prompt_tokens, usage.completion_tokens)
        if not has_ended and not self._recording.has_totals:
            output = max(output or 0, received)
        return (
            min(prompt or draw.prompt_tokens, max(draw.prompt_tokens, len(self._sent))),
            min(draw.output_tokens if output is None else output, draw.output_tokens),
        )


def gateway_retries(headers: Mapping[str, str]) -> dict[RetryKind, int]:
    """Further attempts of gateways by kind, from response headers. Attempts of gateways in series are added."""
    retries: dict[RetryKind, int] = {}
    for header, (kind, counts_first) in RETRIES.items():
        if (count := header_number(headers, header)) is not None:
            retries[kind] = retries.get(kind, 0) + max(0, int(count) - counts_first)
    return retries


def server_request_id(headers: Mapping[str, str], request_id: str) -> str:
    """The server's own id of a request, from response headers; "" without one, or if it is `request_id`, as sent."""
    ids = (shown_name(headers.get(name), MAX_ID_CHARS) for name in REQUEST_IDS)
    return next((name for name in ids if name not in ("", request_id)), "")


def header_number(headers: Mapping[str, str], name: str) -> float | None:
    """Read a header with a whole number in ASCII digits, as in RFC 9110; None if it is absent, invalid or too long."""
    value = headers.get(name, "")
    is_number = value.isascii() and value.isdigit() and len(value) <= MAX_HEADER_DIGITS
    return float(value) if is_number else None
