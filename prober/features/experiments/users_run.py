"""Sends the requests of a search for the largest number of users. Each user waits for an answer, thinks, and sends again."""

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from prober.config.rows import Row
from prober.config.units import counted
from prober.features.experiments.matrix import limits_of
from prober.features.experiments.matrix_run import RowRun, unless
from prober.features.experiments.users import UserLevel, UserSearch
from prober.measure.objective import Slo
from prober.measure.outcome import Outcome
from prober.measure.result import ProbeResult
from prober.measure.target_state import WarmUpLength
from prober.probing.session import Session, UnidentifiedTarget
from prober.probing.stop_conditions import VOID, LoadGuard
from prober.results.refused_requests import refused_requests
from prober.results.result import Load, Result, Stage
from prober.results.shedding import is_shed
from prober.workload.sessions import SessionWorkload
from prober.workload.shapes import Exponential, Fixed, LengthDistribution
from prober.workload.workloads import Mix, Workload

# Share of users who may wait beyond the guard's limit, one at least: a long search meets single outliers.
MAX_HARMED_RATIO = 0.1
NOT_OF_TARGET = frozenset({"not_sent", "page_lost", *VOID})  # end the search, not only a number of users


def users_row(
    sent: Workload | Mix, slos: Sequence[Slo], think_s: float | None, most: int, time_s: float, *, shed_allowed: bool
) -> Row:
    """The requests of `most` users for a time. think_s: mean of an exponential think time; None: not given. Raises ValueError."""
    thinking: LengthDistribution | None = None
    if think_s is not None:
        thinking = Exponential(think_s * 1e3, round(think_s * 1e4)) if think_s else Fixed(0)
    if isinstance(sent, SessionWorkload):
        own = sent.at_own_pace()
        if own.think_time is not None and thinking is not None:
            raise ValueError(f"--think: the sessions of {sent.name} have a think time; leave it out")
        sent = replace(own, count=0, think_time=own.think_time or thinking)
    if sent.think_time is None and thinking is None:
        raise ValueError(
            "--over users needs --think, the mean time that a user thinks after an answer: 10s, or 0s for a client without pauses"
        )
    thinking = None if sent.think_time is not None else thinking
    for part, _ in sent.parts:
        if part.max_concurrency is not None and part.max_concurrency < most:
            raise ValueError(
                f"--max-users {most}: {part.name} has only {part.max_concurrency} sessions at once; raise its `count`, or lower it"
            )
    row = Row(
        name=sent.name,
        workload=sent,
        concurrency=most,
        think_time=thinking,
        duration=time_s,
        accept=tuple(slos),
    )
    return row.model_copy(update={"shed_allowed": shed_allowed})


class UserSweepRun:
    """Runs a sweep over numbers of users.

    row: row of the most users, for the sweep's time; requests: limit of requests, None for none
    on_level: called with text on what is now sent
    """

    def __init__(self, session: Session, row: Row, requests: int | None, on_level: Callable[[str], None]) -> None:
        self._session, self._clock, self._row, self._requests = session, session.clock, row, requests
        self._on_level = on_level
        self._search = UserSearch(row.accept, row.workload, row.concurrency or 1)
        self._stages: list[Stage] = []
        self._ended: list[ProbeResult] = []  # of all levels, for refused requests
        self._stop: tuple[str, str] | None = None
        self._is_over = asyncio.Event()
        self._retry_after_s = 0.0
        self._end_ns = 0

    def stop(self, why: str) -> None:
        """End the sweep from outside, keeping the measurements."""
        self._end("guard", why)

    async def run(self, warm_up: WarmUpLength) -> Result:
        """Sweep to the end. Raises UnidentifiedTarget."""
        session, row, time_s = self._session, self._row, self._row.duration or 0.0
        if session.failure is not None:
            raise UnidentifiedTarget(f"{session.spec.url}: {session.failure.detail}")
        first = RowRun(session, row.model_copy(update={"concurrency": 1}), warm_up)
        self._on_level("warm-up")
        await unless(self._is_over, first.warm_up())
        self._end_ns = self._clock.now_ns() + round(time_s * 1e9)
        while self._stop is None and (step := self._search.next()) is not None:
            level, ends_clear = step
            self._on_level(counted(level.users, "user"))
            await self._run_level(level, ends_clear=ends_clear)
        refused = refused_requests(self._ended)
        harms = (
            f"{counted(level.users, 'user')}: {level.harm}" for level in self._search.levels.values() if level.harm
        )
        stop, detail = self._stop or ("complete", "; ".join(harms))
        is_judged = not refused.is_too_many and stop not in VOID
        return session.result(
            "sweep",
            Load.of(row.workload, arrivals="closed", max_in_flight=max(self._search.levels, default=0)),
            self._stages,
            configuration=json.dumps(
                {
                    "over": "users",
                    "workload": row.workload.name,
                    "think_time": None if row.think_time is None else f"{row.think_time.text} ms",
                    "slos": [slo.name for slo in row.accept],
                    "min_users": 1,
                    "max_users": row.concurrency,
                    "limits": {"requests": self._requests, "time_s": time_s},
                },
                sort_keys=True,
            ),
            slos=row.accept,
            warm_up=first.warmed,
            capacities=self._search.capacities() if is_judged else (),
            stop=stop,
            stop_detail=detail,
            refused=refused,
            retry_after_s=self._retry_after_s,
            differs=tuple(limits_of(first.row)),
        )

    def _end(self, reason: str, detail: str) -> None:
        self._stop = self._stop or (reason, detail)
        self._is_over.set()

    async def _run_level(self, level: UserLevel, *, ends_clear: bool) -> None:
        """Send with one number of users until the evidence decides, it does harm, or the sweep ends."""
        session, clock, slos = self._session, self._clock, self._row.accept
        left_s = max(0.1, (self._end_ns - clock.now_ns()) / 1e9)
        row = self._row.model_copy(update={"concurrency": level.users, "duration": left_s})
        run = RowRun(session, row, WarmUpLength(requests=0))
        thresholds = [slo.threshold_s for slo in slos if slo.signal == "ttft" and slo.threshold_s]
        guard = LoadGuard(
            *(min(thresholds, default=math.inf), level.users / run.spread_s),
            *(session.readings, len(session.readings)),
            shed_allowed=row.shed_allowed,
        )
        run.on_result += [partial(guard.result, is_of_load=True), self._keep_result]
        is_ending = False
        counting_ns: int | None = None  # start of counting
        judged_ns = 0
        level.begin()

        def is_over() -> bool:
            nonlocal is_ending, counting_ns, judged_ns
            waits_s, now_ns = run.waits_s(), clock.now_ns()
            oldest_ns = min([now_ns, *(sending.request.due_ns for sending in run.sender.under_way.values())])
            if counting_ns is None and run.begin_ns is not None and oldest_ns > run.begin_ns + run.spread_s * 1e9:
                counting_ns = now_ns  # each user's first request has ended
            too_many = max(1, math.floor(MAX_HARMED_RATIO * level.users))
            guard.look(now_ns, sorted([*waits_s, *[0.0] * (level.users + 1)], reverse=True)[too_many])
            if session.changes:
                self._end("engine_changed", session.changes[-1])
            if now_ns >= self._end_ns:
                self._end("time_budget", f"{self._row.duration:g} s")
            if self._requests is not None and len(self._ended) >= self._requests:
                self._end("request_budget", counted(len(self._ended), "request"))
            if counting_ns is not None:
                from_ns, judged_ns = max(counting_ns, judged_ns), oldest_ns
                results = sorted(
                    (result for result in run.results if from_ns <= result.timeline.intended_ns < judged_ns),
                    key=lambda result: result.timeline.intended_ns,
                )
                overdue = {
                    slo.name: sum(wait_s > (slo.threshold_s or 0.0) for wait_s in waits_s)
                    for slo in slos
                    if slo.signal == "ttft"
                }
                level.judge(results, overdue)
            if guard.reason in NOT_OF_TARGET:
                self._end(guard.reason, guard.harm)
            elif guard.harm and not is_ending and level.state != "fails":
                level.stop(guard.harm)
            if self._stop is not None or level.harm or level.state == "fails":
                return True
            if not is_ending and (level.is_over or (ends_clear and level.is_clear)):
                is_ending = True
                run.end()
            return False

        await run.watched(is_over)
        begin_ns = counting_ns or run.begin_ns or clock.now_ns()  # failures from the start are shown
        run.begin_ns, run.results = begin_ns, [r for r in run.results if r.timeline.intended_ns >= begin_ns]
        level.samples += sum(result.outcome is not Outcome.CANCELLED for result in run.results)
        run.ended = level.harm or ("" if self._stop is None else self._stop[0]) or level.state
        self._stages.append(replace(run.stage(), name=counted(level.users, "user"), load=None))

    def _keep_result(self, result: ProbeResult | None) -> None:
        """Keep a result; end the sweep if requests are refused, or if the target asks for a pause."""
        if result is None:
            return
        self._ended.append(result)
        if result.outcome is Outcome.REJECTED:
            refused = refused_requests(self._ended)
            if refused.are_surely_too_many:
                self._end("refused", str(refused))
        if result.retry_after_s is not None and not (self._row.shed_allowed and is_shed(result)):
            self._retry_after_s = max(self._retry_after_s, result.retry_after_s)
            self._end("retry_after", f"{result.retry_after_s:g} s")
