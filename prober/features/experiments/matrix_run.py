"""Sends the rows of a workload matrix one after the other, in open or closed loops. A row can be sent as load beside another."""

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from rich.progress import Progress, TaskID

from prober.config.rows import Row
from prober.features.experiments import matrix
from prober.measure.gpu_reading import without_parts
from prober.measure.outcome import ANSWERED, Outcome
from prober.measure.request import Drawer
from prober.measure.result import ProbeResult
from prober.measure.target_state import WarmUpLength
from prober.net.endpoint import endpoint
from prober.probing.probe import new_request
from prober.probing.sender import Sender, Sending
from prober.probing.session import Session, UnidentifiedTarget
from prober.probing.stop_conditions import LoadGuard
from prober.probing.target import Target
from prober.results.cost import judge_cost
from prober.results.delivery import is_good
from prober.results.disturbance import Disturbance, contrast_of, disturbance_of
from prober.results.refused_requests import refused_requests
from prober.results.result import Result, Stage, WarmUp
from prober.results.shedding import shedding_of
from prober.results.stage import stage_of
from prober.workload.arrivals import derive_seed
from prober.workload.workloads import RequestGenerator

LOOK_NS = 250_000_000  # between checks of a load by the requests in flight
MIN_SPREAD_S = 1.0  # in which a row's users begin, so that not all send at once
RETRY_PAUSE_S = 0.1  # in a closed loop after an unanswered request, to spare a target that is down


async def run_rows(
    session: Session,
    rows: Sequence[Row],
    warm_up: WarmUpLength,
    interrupted: asyncio.Event,
    progress: Progress,
    configuration: str,
    burst_s: float,
) -> tuple[list[matrix.RowVerdict], Result]:
    """Send and judge the rows one after the other until one is interrupted. Returns (verdicts on all rows, result).

    configuration: text of the rows, for the result; burst_s: see `judge`. Raises UnidentifiedTarget.
    """
    if session.failure is not None:
        raise UnidentifiedTarget(f"{session.spec.url}: {session.failure.detail}")
    say = partial(progress.console.print, markup=False)

    def advance(bar: TaskID, result: ProbeResult | None) -> None:
        progress.advance(bar)

    error = matrix.fails_error(rows)
    for text, _ in (need for row in rows for need in matrix.needs(row, error, burst_s)):
        say(text)
    loads = {row.beside: row for row in rows if row.beside is not None}
    sent: list[RowRun] = []
    for number, row in enumerate(rows, 1):
        if interrupted.is_set():
            break
        if row.beside is not None:
            continue  # sent with its host row
        say(f"{number}/{len(rows)} {_line(row)}")
        bar = progress.add_task(row.name, total=row.requests)
        run, load = RowRun(session, row, warm_up), None
        run.on_result.append(partial(advance, bar))
        if (load_row := loads.get(row.name)) is not None:
            say(f"beside it after {load_row.start:g} s: {_line(load_row)}")
            load = RowRun(session, load_row, warm_up, host=run)
        is_complete = await unless(interrupted, _send(run, load))
        progress.remove_task(bar)
        run.ended = "complete" if is_complete else "interrupted"
        for part in (run, load):
            if part is not None and part.begin_ns is not None:
                part.ended = part.harm or run.ended
                part.verdict = matrix.judge(
                    *(part.row, part.results),
                    error=error,
                    burst_s=burst_s,
                    loading=part.loading,
                    interrupted=not is_complete,
                )
                sent.append(part)
        if run.begin_ns is not None:
            run.disturbance = load.effect() if load is not None and is_complete else None
            say(matrix.sentences([run.verdict]))
    return _judged(session, rows, sent, configuration)


def _line(row: Row) -> str:
    expected = f"; expected: {row.hypothesis}" if row.hypothesis else ""
    return f"{row.name}: {matrix.amount(row)}, {matrix.loop(row)}{expected}"


async def _send(run: "RowRun", load: "RowRun | None") -> None:
    """Warm up, then send the row, with the load beside it, if any."""
    await run.warm_up()
    if load is not None:
        await load.warm_up()
    async with asyncio.TaskGroup() as rows:
        rows.create_task(run.send())
        if load is not None:
            rows.create_task(load.send_beside())


async def unless(interrupted: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work` until it ends or `interrupted` is set. Returns True if it ended by itself."""
    working, waiting = asyncio.create_task(work), asyncio.create_task(interrupted.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
            return True
        return False
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)


def _judged(
    session: Session, rows: Sequence[Row], sent: "Sequence[RowRun]", configuration: str
) -> tuple[list[matrix.RowVerdict], Result]:
    """(verdicts on all rows with their cost targets, result with a stage per started row)."""
    by_name = {run.row.name: run for run in sent}
    stages: list[Stage] = []
    for run in sent:
        other, contrast = by_name.get(run.row.against or ""), None
        if other is not None and all(
            compared.ended == "complete" and compared.verdict.state != "not_judged" for compared in (run, other)
        ):
            contrast = contrast_of(run.results, other.results, name=other.row.name)
        stages.append(replace(run.stage(), contrast=contrast))
    is_complete = len(sent) == len(rows) and all(run.ended != "interrupted" for run in sent)
    result = session.result(
        "run",
        matrix.load_of(rows, session.spec.max_in_flight),
        stages,
        configuration=configuration,
        slos=tuple({slo.name: slo for row in rows for slo in row.accept}.values()),
        warm_up=min(
            (run.warmed for run in sent),
            key=lambda warmed: (warmed.is_steady is not False, warmed.requests),
            default=WarmUp(0),
        ),
        stop="complete" if is_complete else "interrupted",
        differs=(
            *(f"{matrix.stage_name(row)}: {text}" for row in rows for text in matrix.limits_of(row)),
            *(f"{matrix.stage_name(run.row)}: {text}" for run in sent for text in matrix.other_models(run.results)),
        ),
    )
    verdicts = [*(run.verdict for run in sent), *(matrix.not_begun(row) for row in rows[len(sent) :])]
    for place, row in enumerate(rows):
        if row.max_cost is not None:
            priced = result.stages[place] if place < len(sent) else None
            verdicts[place] = matrix.with_cost(verdicts[place], judge_cost(priced, result.prices, row.max_cost))
    if (decided := matrix.decision(verdicts)) is not None:
        return verdicts, replace(result, decision=replace(decided, rollback_risk=session.spec.context.rollback))
    return verdicts, replace(result, stop_detail=matrix.sentences(verdicts))


class RowRun:
    """A row, from its warm-up to its verdict.

    on_result: called with each ended request's result; None if the engine loads or shuts down
    begin_ns, end_ns: span of counted requests; begin_ns is None before it
    warmed: requests and duration of the warm-up
    results: sorted by due time after the end
    loading: number of requests not sent because the engine loads or shuts down
    ended: "complete", or why it ended early; verdict: on its results, once it has ended
    disturbance: effect of the load beside it, if any
    host: for a load, the row beside which it is sent; harm: why the load ended early, or ""; stop_ns: when it ended
    """

    def __init__(self, session: Session, row: Row, warm_up: WarmUpLength, host: "RowRun | None" = None) -> None:
        self.session, self.row, self._warm_up, self.host = session, row, warm_up, host
        self.on_result: list[Callable[[ProbeResult | None], object]] = []
        # Its own: the number of earlier requests, of other rows or a warm-up, must not change those of this row.
        self._rng = Random(derive_seed(str(session.seed), row.name))
        self._clock = session.clock
        self._target = with_headers(session.target, row.headers)
        self._lead_ns = round(session.spec.connect_lead * 1e9)
        self.sender = Sender(
            self._target, session.launch, on_end=self._ended, cut_text="cut when the row was interrupted"
        )
        self._drawer = RequestGenerator(row.workload, self._rng)
        # Its own too: the order of answers must not change the requests.
        self._think_time = row.think_time_of_users
        self._think_rng = Random(derive_seed(str(session.seed), row.name, "think time"))
        self.spread_s = 0.0 if self._think_time is None else max(MIN_SPREAD_S, self._think_time.mean() / 1e3)
        self._started = 0  # in a closed loop
        self._latest_ns: dict[str, float] = {}  # by request id; see `as_sent`
        self.begin_ns: int | None = None
        self._end_due_ns = math.inf  # later turns, and requests of a closed loop, are due before this
        self.end_ns = 0
        self.warmed = WarmUp(0)
        self.results: list[ProbeResult] = []
        self.loading = 0
        self.ended = ""
        self.verdict = matrix.not_begun(row)
        self.disturbance: Disturbance | None = None
        self.harm, self.stop_ns = "", 0

    async def warm_up(self) -> None:
        """Send the warm-up, which is not counted."""
        rng = Random(derive_seed(str(self.session.seed), self.row.name, "warm-up"))
        warm = RequestGenerator(matrix.warming(self.row.workload), rng)
        async with aclosing(self.session.warm_up(warm, self._warm_up, self._target)) as results:
            async for _ in results:
                pass
        self.warmed = self.session.warmed

    async def send(self) -> None:
        """Send the counted requests. If cancelled, it keeps the results so far and leaves no request in flight."""
        row = self.row
        self.begin_ns = self._clock.now_ns() + (0 if row.closed else self._lead_ns)
        self._end_due_ns = math.inf if row.duration is None else self.begin_ns + row.duration * 1e9
        try:
            async with self.sender:
                for user in range(row.concurrency or 0):
                    self._begin_next(self._drawer, self.begin_ns, user / (row.concurrency or 1) * self.spread_s)
                if not row.closed:
                    async for _ in self.sender.results(self._drawer, matrix.due_times(row, self._rng, self.begin_ns)):
                        pass  # `_ended` takes each result when it comes
        finally:
            self.end_ns = self._clock.now_ns()
            self.results.sort(key=lambda result: result.timeline.intended_ns)

    async def watched(self, is_over: Callable[[], bool], end_ns: float = math.inf) -> None:
        """Send, and every `LOOK_NS` until `end_ns` check `is_over`: if true, cut the requests in flight."""
        sending = asyncio.create_task(self.send())
        try:
            while not sending.done() and (now_ns := self._clock.now_ns()) < end_ns:
                await self._clock.sleep_until(round(min(now_ns + LOOK_NS, end_ns)))
                if is_over():
                    return
            await sending
        finally:
            sending.cancel()
            await asyncio.wait([sending])
            if not sending.cancelled():
                sending.result()  # raises a fault of the prober

    async def send_beside(self) -> None:
        """Send as load beside the host, from its start to its end, or until a `LoadGuard` finds harm."""
        session, clock, host, since = self.session, self._clock, self.host, len(self.session.readings)
        assert host is not None
        assert host.row.ttft is not None
        await clock.sleep_until(clock.now_ns() + round(self.row.start * 1e9))
        rate_per_s, threshold_s = (host.row.rate or 0.0) + (self.row.rate or 0.0), host.row.ttft.threshold_s or math.inf
        guard = LoadGuard(threshold_s, rate_per_s, session.readings, since, shed_allowed=self.row.shed_allowed)
        host.on_result.append(guard.result)
        self.on_result.append(partial(guard.result, is_of_load=True))
        self.stop_ns = end_ns = clock.now_ns() + self._lead_ns + round((self.row.duration or 0.0) * 1e9)

        def is_over() -> bool:
            guard.look(clock.now_ns(), max(host.waits_s(), default=0.0))
            if guard.harm:
                self.harm, self.stop_ns = guard.harm, min(clock.now_ns(), end_ns)
            return bool(guard.harm)

        await self.watched(is_over, end_ns)

    def effect(self) -> Disturbance | None:
        """The effect of this load on its host, which has ended; None if the load never began, or if too many requests of either were
        refused.
        """
        host = self.host
        assert host is not None
        assert host.row.ttft is not None
        if host.begin_ns is None or self.begin_ns is None:
            return None
        if any(refused_requests(run.results).is_too_many for run in (host, self)):
            return None
        return disturbance_of(
            host.row.ttft,
            host.results,
            name=self.row.name,
            ended=self.harm,
            stage_begin_ns=host.begin_ns,
            begin_ns=self.begin_ns,
            end_ns=self.stop_ns,
        )

    def stage(self) -> Stage:
        """The results of the row as a stage."""
        row, session = self.row, self.session
        assert self.begin_ns is not None
        last_ns = max((result.timeline.intended_ns for result in self.results), default=self.begin_ns)
        sending_s = max(0.0, (last_ns - self.begin_ns) / 1e9)
        if self.ended == "complete" and row.duration is not None:
            sending_s = row.duration
        devices = [read for at_ns, read in session.gpus if self.begin_ns <= at_ns <= self.end_ns]
        stage = stage_of(
            matrix.stage_name(row),
            row.rate,
            self.results,
            origin_ns=session.origin_ns,
            begin_ns=self.begin_ns,
            sending_s=sending_s,
            slos=row.accept,
            readings=[signals for at_ns, signals in session.readings if self.begin_ns <= at_ns <= self.end_ns],
            devices=devices,
            gpus=len(without_parts(devices[-1])) if devices else None,
            ended=self.ended,
        )
        if (host := self.host) is not None:  # both share a limit, unless the row has another key
            both = [*host.results, *self.results] if host.row.headers == row.headers else self.results
            end_ns = self.begin_ns + round(sending_s * 1e9)
            meanwhile = [result for result in both if self.begin_ns <= result.timeline.intended_ns <= end_ns]
            beside = host.row.name if both is not self.results else ""
            good = partial(is_good, slos=host.row.accept)
            stage = replace(stage, shedding=shedding_of(meanwhile, sending_s, good, beside))
        load = matrix.shape_of(row, session.spec.max_in_flight)
        users = row.concurrency if self._think_time is not None else None
        return replace(stage, load=load, disturbance=self.disturbance, users=users)

    def end(self) -> None:
        """End the loop: requests due later are not sent, those in flight continue."""
        self._end_due_ns = self._clock.now_ns()
        for task, sending in self.sender.under_way.items():
            if not sending.is_due:
                task.cancel()

    def waits_s(self) -> list[float]:
        """Seconds for which each running request has waited for its first token; 0 before it counts (`as_sent`)."""
        self.sender.read_arrived()
        now_ns, waits_s = self._clock.now_ns(), []
        for sending in self.sender.under_way.values():
            first_ns, late_ns = (None, 0) if sending.run is None else (sending.run.first_ns, sending.run.late_ns)
            from_ns = max(sending.request.due_ns + late_ns, self._latest_ns.get(sending.request.request_id, 0))
            waits_s.append(max(0.0, ((first_ns or now_ns) - from_ns) / 1e9))
        return waits_s

    def _begin_next(self, drawer: Drawer, now_ns: int, pause_s: float) -> None:
        """Send the next request of the closed loop after a pause, unless the loop ends before."""
        row, due_ns = self.row, now_ns + round(pause_s * 1e9)
        if self._started < row.requests if row.requests is not None else due_ns < self._end_due_ns:
            self._started += 1
            ready_ns = max(due_ns, now_ns + self._lead_ns)
            self._begin(drawer, due_ns, math.inf if self._think_time is None else ready_ns)

    def _begin(self, drawer: Drawer, due_ns: int, latest_ns: float) -> None:
        """Send a request. latest_ns: until then, waiting for the connection is not counted as latency"""
        request = new_request(self._target, drawer, due_ns)
        self._latest_ns[request.request_id] = latest_ns
        self.sender.begin(request)

    def _ended(self, sending: Sending, result: ProbeResult | None) -> None:
        """Keep a result, then send the next request of a closed loop, or the next turn of a session with think time.

        If the think time is shorter than `connect_lead`, every request gets the whole lead, whose excess counts in no latency.
        """
        now_ns, session = self._clock.now_ns(), sending.request.session
        if result is None:
            self.loading += 1
        else:
            result = matrix.as_sent(result, self._latest_ns.pop(sending.request.request_id, 0))
            self.results.append(result)
        for listener in self.on_result:
            listener(result)
        if result is not None and result.outcome is Outcome.CANCELLED:
            return
        if self.row.closed:
            is_answered = result is not None and result.outcome in ANSWERED
            pause_s, drawer = 0.0 if is_answered else RETRY_PAUSE_S, self._drawer
            if session is not None and session.think_s is not None:
                self._begin_next(session if session.turns_left else drawer, now_ns, max(pause_s, session.think_s))
            elif self._think_time is not None:
                self._begin_next(drawer, now_ns, max(pause_s, self._think_time.draw(self._think_rng) / 1e3))
            else:
                self._begin_next(drawer, now_ns, pause_s)
        elif result is not None and session is not None and session.think_s is not None and session.turns_left:
            due_ns = max((result.timeline.end_ns or now_ns) + round(session.think_s * 1e9), now_ns)
            if due_ns < self._end_due_ns:
                self._begin(session, due_ns, max(due_ns, now_ns + self._lead_ns))


def with_headers(target: Target, headers: Mapping[str, str]) -> Target:
    """The target with these headers, which override its own headers and key of the same name."""
    if not headers:
        return target
    other, spec = target.beside(), target.spec
    replaced = {name.lower() for name in headers}
    own = {name: value for name, value in spec.headers.items() if name.lower() not in replaced}
    secret_header = spec.auth.credential("")[0].lower() if spec.auth is not None else ""
    auth = None if secret_header in replaced else spec.auth
    other.spec = spec.model_copy(update={"headers": {**own, **headers}, "auth": auth})
    other.endpoint = endpoint(other.spec)
    return other
