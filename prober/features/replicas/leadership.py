"""Leadership: only one replica of a shard may sweep and write to Grafana."""

import asyncio
import logging
import re
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from prober.config.problems import ConfigError
from prober.exposition.families import Registry
from prober.features.replicas import series as replicas_series
from prober.features.replicas.lease_machine import Candidate, Read, Record, Timing, Wait, Write
from prober.features.replicas.lease_store import Conflict, FileLease, KubernetesLease, now_s
from prober.net.kubernetes import Api, KubernetesApiError, Unreachable
from prober.probing.leadership import Alone, Leadership, Listener
from prober.probing.shard import Shard

TIMER_MARGIN_S = 0.001  # a timer may fire this early
MIN_DURATION_S = 3.0  # a busy machine would lose a shorter lease
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
RELEASE_TRIES = 3  # then others wait until the lease expires
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """Options `--lease.*`.

    name, path: None if that kind of lease is not used
    namespace, api_server: None for those of the pod
    token_file, ca_file: for `api_server`
    """

    name: str | None = None
    namespace: str | None = None
    api_server: str | None = None
    token_file: str | None = None
    ca_file: str | None = None
    path: str | None = None
    duration_s: float = 15.0


def leadership(options: LeaseOptions, shard: Shard, instance: str, families: Registry) -> Leadership:
    """Leadership for the replicas of a shard. Raises ConfigError, and OSError for an unusable folder."""
    if options.duration_s < MIN_DURATION_S or options.duration_s % 1:
        raise ConfigError(
            f"--lease.duration {options.duration_s:g}s: whole seconds, {MIN_DURATION_S:g}s at least; write 15s"
        )
    if options.name is None and options.path is None:
        return Alone()
    if options.name is not None and options.path is not None:
        raise ConfigError(
            "--lease.name and --lease.path: one of the two; a Kubernetes Lease, or a file on this machine"
        )
    identity, timing = f"{instance}_{uuid.uuid4()}", Timing(options.duration_s)
    if options.path is not None:
        return FileLeadership(FileLease(options.path, f"lease-{shard.index}"), identity, timing, families)
    name = f"{options.name}-{shard.index}"
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"--lease.name {options.name}: lower-case letters, digits, - and . only, such as llm-slo-prober"
        )
    try:
        api = (
            Api(options.api_server, token_file=options.token_file, ca_file=options.ca_file)
            if options.api_server
            else Api.in_cluster()
        )
    except (Unreachable, ValueError) as problem:
        raise ConfigError(f"--lease.api-server: {problem}") from None
    return KubernetesLeadership(
        KubernetesLease(api, options.namespace or api.namespace, name), identity, timing, families
    )


class _ObservedLease:
    """Common part of leases: series, log and callbacks."""

    def __init__(self, where: str, families: Registry) -> None:
        self.where = where
        self._held, self._transitions = (
            families[declared.name].value()
            for declared in (replicas_series.LEASE_HELD, replicas_series.LEASE_TRANSITIONS)
        )
        self._failures = families[replicas_series.LEASE_FAILURES.name].value()
        self._fence: int | None = None
        self._problem = ""
        self._listeners: list[tuple[Listener, Listener]] = []

    def listen(self, lost: Listener, won: Listener) -> None:
        self._listeners.append((lost, won))

    def _notify(self, fence: int | None, record: Record | None) -> None:
        """Call the callbacks if the lease was lost or acquired since the last call."""
        if record is not None:
            self._transitions.value = float(max(0, record.transitions))
        self._held.value = float(fence is not None)
        if fence == self._fence:
            return
        before, self._fence = self._fence, fence
        if before is not None:
            log.info("lease %s: lost", self.where)
            for lost, _ in self._listeners:
                lost()
        if fence is not None:
            log.info("lease %s: acquired (transitions %d)", self.where, fence)
            for _, won in self._listeners:
                won()

    def _failed(self, problem: Exception) -> None:
        self._failures.inc()
        if str(problem) != self._problem:
            self._problem = str(problem)
            log.warning("lease %s: sweeps and Grafana wait for it, probing continues: %s", self.where, problem)

    def _answered(self) -> None:
        if self._problem:
            self._problem = ""
            log.info("lease %s: the API server answers again", self.where)


class KubernetesLeadership(_ObservedLease):
    """Leadership by a Kubernetes Lease of a shard. identity: unique per process."""

    def __init__(
        self,
        lease: KubernetesLease,
        identity: str,
        timing: Timing,
        families: Registry,
        clock: Callable[[], float] = now_s,
    ) -> None:
        super().__init__(str(lease), families)
        self._lease, self._timing, self._clock = lease, timing, clock
        self._candidate = Candidate(identity, timing, Random())
        self._claims: dict[str, tuple[float, asyncio.Future[int | None]]] = {}
        self._woken = asyncio.Event()
        self._alarm: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def holder(self) -> str:
        record = self._candidate.record
        return record.holder if record is not None else ""

    def held(self) -> int | None:
        return self._candidate.held(self._clock())

    def claimed(self, key: str) -> float:
        record = self._candidate.record
        return record.claims.get(key, 0.0) if record is not None else 0.0

    async def claim(self, key: str, number: float) -> int | None:
        if self.held() is None:
            return None
        waiting: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        _, before = self._claims.get(key, (0.0, waiting))
        if before is not waiting and not before.done():
            before.set_result(None)
        self._claims[key] = number, waiting
        self._candidate.claim(key, number)
        self._woken.set()
        return await waiting

    async def run(self) -> None:
        self._task = asyncio.current_task()
        while True:
            await self._step()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._candidate.leave()
        self._publish()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._timing.request_timeout_s):
                for _ in range(RELEASE_TRIES):
                    if isinstance(action := self._candidate.next(self._clock()), Wait):
                        break
                    await self._send(action)
        await self._lease.close()

    async def _step(self) -> None:
        action = self._candidate.next(self._clock())
        if isinstance(action, Wait):
            self._woken.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, action.until_s - self._clock()) + TIMER_MARGIN_S):
                    await self._woken.wait()
        else:
            await self._send(action)
        self._publish()

    async def _send(self, action: Read | Write) -> None:
        candidate, ask_s = self._candidate, self._timing.request_timeout_s
        try:
            if isinstance(action, Read):
                candidate.record_read(await self._lease.read(ask_s), self._clock())
            else:
                candidate.record_written(await self._lease.write(action, ask_s), self._clock())
        except Conflict:
            candidate.conflicted(self._clock())
        except (KubernetesApiError, Unreachable) as problem:
            candidate.failed(self._clock(), problem.retry_after_s if isinstance(problem, KubernetesApiError) else 0.0)
            self._failed(problem)
            return
        except Exception as problem:
            candidate.failed(self._clock())
            self._failed(problem)
            log.exception("lease %s: internal error; please report this", self.where)
            return
        self._answered()

    def _publish(self) -> None:
        """Publish whether the lease is held, and set a timer for its end."""
        now, candidate = self._clock(), self._candidate
        fence = candidate.held(now)
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if fence is not None:
            loop = asyncio.get_running_loop()
            self._alarm = loop.call_later(max(0.0, candidate.until_s - now) + TIMER_MARGIN_S, self._publish)
        for key, (number, waiting) in list(self._claims.items()):
            if fence is None or self.claimed(key) >= number:
                del self._claims[key]
                if not waiting.done():
                    waiting.set_result(fence)
        self._notify(fence, candidate.record)


class FileLeadership(_ObservedLease):
    """Leadership by a locked file for replicas on one machine."""

    def __init__(self, lease: FileLease, identity: str, timing: Timing, families: Registry) -> None:
        super().__init__(str(lease), families)
        self._lease, self._identity, self._retry_s = lease, identity, timing.retry_s
        self._is_held = False
        self._task: asyncio.Task[None] | None = None

    @property
    def holder(self) -> str:
        return self._lease.record.holder

    def held(self) -> int | None:
        return self._lease.record.transitions if self._is_held else None

    def claimed(self, key: str) -> float:
        return self._lease.record.claims.get(key, 0.0)

    async def claim(self, key: str, number: float) -> int | None:
        if not self._is_held:
            return None
        try:
            await asyncio.to_thread(self._lease.claim, key, number)
        except OSError as problem:
            self._failed(problem)
            return None
        return self.held()

    async def run(self) -> None:
        self._task = asyncio.current_task()
        while True:
            try:
                if self._is_held and not await asyncio.to_thread(self._lease.is_intact):
                    self._is_held = False
                    self._lease.release()
                    self._publish()
                if not self._is_held:
                    self._is_held = await asyncio.to_thread(self._lease.take, self._identity)
                self._answered()
            except OSError as problem:
                self._failed(problem)
            self._publish()
            await asyncio.sleep(self._retry_s)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._is_held = False
        self._publish()
        self._lease.release()

    def _publish(self) -> None:
        self._notify(self.held(), self._lease.record)
