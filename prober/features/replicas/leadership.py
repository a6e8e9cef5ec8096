"""Leadership: only one replica of a shard may sweep and write to Grafana. A Kubernetes Lease records which one."""

import asyncio
import json
import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random

from prober.config.problems import ConfigError
from prober.exposition.families import Registry
from prober.features.replicas.lease_machine import Candidate, Read, Record, Timing, Wait, Write
from prober.features.replicas.series import LEASE_FAILURES, LEASE_HELD, LEASE_TRANSITIONS
from prober.net.kubernetes import Api, Json, KubernetesApiError, Unreachable
from prober.probing.replicas import Leadership, Listener, Shard

CLAIMS_ANNOTATION = "llm-slo-prober/swept"  # value: a JSON object
LABELS = {"app.kubernetes.io/name": "llm-slo-prober"}  # an uninstall finds the Leases by them
MAX_HOLDER_LENGTH = 500
_MICRO_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


class Conflict(Exception):
    """The record on the server no longer has the version that was to be replaced."""


TIMER_MARGIN_S = 0.001  # a timer may fire this early
MIN_DURATION_S = 3.0  # a busy machine would lose a shorter lease
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
RELEASE_TRIES = 3  # afterwards others wait until the lease expires
log = logging.getLogger(__name__)


class KubernetesLease:
    """A Lease of coordination.k8s.io/v1. Labels, annotations and fields of other writers stay."""

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self._api, self._namespace, self._name = api, namespace, name
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._last: Json = {}

    def __str__(self) -> str:
        return f"{self._namespace}/{self._name}"

    async def read(self, timeout_s: float) -> Record | None:
        """The current record; None if there is no Lease. Raises KubernetesApiError, Unreachable."""
        try:
            self._last = await self._api.get(f"{self._folder}/{self._name}", timeout_s=timeout_s)
        except KubernetesApiError as refusal:
            if refusal.status != 404:
                raise
            self._last = {}
            return None
        return self._record()

    async def write(self, write: Write, timeout_s: float) -> str:
        """Write and return the new version. Raises Conflict, KubernetesApiError, Unreachable."""
        body = _body(self._last, self._name, write, datetime.now(UTC))
        try:
            if write.record.version:
                self._last = await self._api.replace(f"{self._folder}/{self._name}", body, timeout_s=timeout_s)
            else:
                self._last = await self._api.create(self._folder, body, timeout_s=timeout_s)
        except KubernetesApiError as refusal:
            if refusal.status not in (404, 409):  # 404: deleted since it was read
                raise
            raise Conflict from None
        return self._record().version

    def _record(self) -> Record:
        """Convert the last answer to a record, without tokens. Raises Unreachable."""
        redactor = self._api.redactor
        try:
            record = record_of(self._last)
        except Unreachable as problem:
            raise Unreachable(redactor.redact(str(problem))) from None
        return replace(record, holder=redactor.redact(record.holder))

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()


def record_of(body: Json) -> Record:
    """Read the record from a Lease. Raises Unreachable if `body` is no Lease."""
    spec, metadata = body.get("spec") or {}, body.get("metadata") or {}
    try:
        return Record(
            holder=str(spec.get("holderIdentity") or "")[:MAX_HOLDER_LENGTH],
            lease_s=float(spec.get("leaseDurationSeconds") or 0),
            transitions=int(spec.get("leaseTransitions") or 0),
            version=str(metadata["resourceVersion"]),
            claims=_claims((metadata.get("annotations") or {}).get(CLAIMS_ANNOTATION)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise Unreachable(f"not a Lease: {type(problem).__name__}: {str(problem)[:200]}") from None


def _claims(text: str | None) -> Mapping[str, float]:
    """Read the claims in an annotation: {key: number}; empty if the text is no JSON object of numbers."""
    try:
        return {str(key): float(number) for key, number in json.loads(text or "{}").items()}
    except (AttributeError, TypeError, ValueError):
        return {}


def _body(last: Json, name: str, write: Write, now: datetime) -> Json:
    record, metadata, spec = write.record, dict(last.get("metadata") or {}), dict(last.get("spec") or {})
    metadata["name"] = name
    metadata.pop("resourceVersion", None)
    if record.version:
        metadata["resourceVersion"] = record.version
    else:
        metadata, spec = {"name": name}, {}
    metadata["labels"] = LABELS | (metadata.get("labels") or {})
    claims = json.dumps(dict(record.claims), separators=(",", ":"))
    metadata["annotations"] = {**(metadata.get("annotations") or {}), CLAIMS_ANNOTATION: claims}
    at = now.strftime(_MICRO_TIME)
    if at == spec.get("renewTime"):  # an unchanged object gets no new version
        at = (now + timedelta(microseconds=1)).strftime(_MICRO_TIME)
    spec |= {
        "holderIdentity": record.holder or None,  # Kubernetes refuses ""
        "leaseDurationSeconds": max(1, round(record.lease_s)),
        "leaseTransitions": record.transitions,
        "renewTime": at,
    }
    if write.begins:
        spec["acquireTime"] = at
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


def now_s() -> float:
    """Seconds of a clock that never goes back and, unlike the monotonic clock, runs while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class LeaseOptions:
    """Options `--lease.*`.

    name: name of the lease; None: no lease is used
    namespace, api_server: None: those of the pod
    token_file, ca_file: token and certificate authorities for `api_server`
    """

    name: str | None = None
    namespace: str | None = None
    api_server: str | None = None
    token_file: str | None = None
    ca_file: str | None = None
    duration_s: float = 15.0


def leadership(options: LeaseOptions, shard: Shard, instance: str, families: Registry) -> Leadership:
    """Create the leadership for the replicas of a shard. Raises ConfigError."""
    if options.duration_s < MIN_DURATION_S or options.duration_s % 1:
        raise ConfigError(
            f"--lease.duration {options.duration_s:g}s: whole seconds, {MIN_DURATION_S:g}s at least; write 15s"
        )
    if options.name is None:
        return Leadership()
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
    lease = KubernetesLease(api, options.namespace or api.namespace, name)
    return KubernetesLeadership(lease, f"{instance}_{uuid.uuid4()}", Timing(options.duration_s), families)


class KubernetesLeadership(Leadership):
    """Leadership by a Kubernetes Lease of a shard. identity: unique per process."""

    def __init__(
        self,
        lease: KubernetesLease,
        identity: str,
        timing: Timing,
        families: Registry,
        clock: Callable[[], float] = now_s,
    ) -> None:
        self.where = str(lease)
        self._lease, self._timing, self._clock = lease, timing, clock
        self._families = families
        self._held, self._failures = (families.value(declared) for declared in (LEASE_HELD, LEASE_FAILURES))
        self._candidate = Candidate(identity, timing, Random())
        self._fence: int | None = None
        self._problem = ""
        self._listeners: list[tuple[Listener, Listener]] = []
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
        if (earlier := self._claims.get(key)) is not None and not earlier[1].done():
            earlier[1].set_result(None)
        waiting: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self._claims[key] = number, waiting
        self._candidate.claim(key, number)
        self._woken.set()
        return await waiting

    def listen(self, lost: Listener, won: Listener) -> None:
        self._listeners.append((lost, won))

    async def run(self) -> None:
        self._task = asyncio.current_task()
        while True:
            action = self._candidate.next(self._clock())
            if isinstance(action, Wait):
                self._woken.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(0.0, action.until_s - self._clock()) + TIMER_MARGIN_S):
                        await self._woken.wait()
            else:
                await self._send(action)
            self._publish()

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

    async def _send(self, action: Read | Write) -> None:
        candidate, ask_s = self._candidate, self._timing.request_timeout_s
        try:
            if isinstance(action, Read):
                candidate.record_read(await self._lease.read(ask_s), self._clock())
            else:
                candidate.record_written(await self._lease.write(action, ask_s), self._clock())
        except Conflict:
            candidate.conflicted(self._clock())
        except Exception as problem:
            candidate.failed(self._clock(), problem.retry_after_s if isinstance(problem, KubernetesApiError) else 0.0)
            self._failures.inc()
            if str(problem) != self._problem:
                self._problem = str(problem)
                log.warning("lease %s: sweeps and Grafana wait for it, probing continues: %s", self.where, problem)
            if not isinstance(problem, (KubernetesApiError, Unreachable)):
                log.exception("lease %s: internal error; please report this", self.where)
            return
        if self._problem:
            self._problem = ""
            log.info("lease %s: the API server answers again", self.where)

    def _publish(self) -> None:
        """Export whether the lease is held, call the listeners on a change, and set a timer for the end of the lease."""
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
        if (record := candidate.record) is not None:
            self._families.show(LEASE_TRANSITIONS, float(max(0, record.transitions)))
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
