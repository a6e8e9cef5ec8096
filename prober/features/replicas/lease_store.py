"""Stores of a lease: a Kubernetes Lease, or a file that the kernel locks for one process of this machine."""

import fcntl
import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Lock
from typing import Any

from prober.features.replicas.lease_machine import Record, Write
from prober.net.kubernetes import Api, Json, KubernetesApiError, Unreachable

CLAIMS_ANNOTATION = "llm-slo-prober/swept"  # a JSON object
LABELS = {"app.kubernetes.io/name": "llm-slo-prober"}  # by which an uninstall finds the Leases
MAX_HOLDER_LENGTH = 500
_MICRO_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
NETWORK_FILE_SYSTEMS = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs"),
        *("glusterfs", "sshfs", "s3fs"),
    }
)


class Conflict(Exception):
    """The record has another version."""


class UnusableFolder(OSError):
    """A folder that cannot hold a lease; the message names it and the remedy."""


def now_s() -> float:
    """Seconds of a clock that never goes back and, unlike the monotonic one, counts while the machine sleeps."""
    return time.clock_gettime(_CLOCK)


class KubernetesLease:
    """A Lease of coordination.k8s.io/v1. Labels, annotations and fields of other writers are preserved."""

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
        """The last answer as a record, without tokens. Raises Unreachable."""
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
    """The record in a Lease. Raises Unreachable if `body` is no Lease."""
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
    """Claims of an annotation; empty if it is not a JSON object of numbers."""
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
    if at == spec.get("renewTime"):  # a write that changes nothing has no new version
        at = (now + timedelta(microseconds=1)).strftime(_MICRO_TIME)
    spec |= {
        "holderIdentity": record.holder or None,  # an empty one is refused
        "leaseDurationSeconds": max(1, round(record.lease_s)),
        "leaseTransitions": record.transitions,
        "renewTime": at,
    }
    if write.begins:
        spec["acquireTime"] = at
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}


class FileLease:
    """A locked file in a folder of this machine, held until it is released or its process ends.

    A process that hangs still holds it. Methods block on the disk.
    """

    def __init__(self, folder: str, name: str) -> None:
        """Raises UnusableFolder: not writable, or on a network file system, where locks of several machines cannot be relied on."""
        path = Path(folder)
        self._lock, self._state = path / f"{name}.lock", path / f"{name}.json"
        self._file = -1
        self._turn = Lock()
        self.record = Record("", 0.0, -1)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not os.access(path, os.W_OK):
                raise PermissionError(13, "the folder is not writable")
        except OSError as problem:
            raise UnusableFolder(
                f"--lease.path {folder}: cannot be used: {problem}; name a folder that all replicas can write to"
            ) from None
        if kind := network_file_system(path):
            raise UnusableFolder(
                f"--lease.path {folder}: is on {kind}, whose locks cannot be relied on; name a folder on a local disk, or use "
                "--lease.name with a Kubernetes API server"
            )

    def __str__(self) -> str:
        return str(self._lock)

    def take(self, holder: str) -> bool:
        """Take the lease if nobody holds it; whether it is held now. Raises OSError."""
        file = os.open(self._lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            before = self._read()
            self._write(Record(holder, 0.0, before.transitions + 1, "", before.claims))
        except BlockingIOError:
            os.close(file)
            self.record = self._read()
            return False
        except BaseException:
            os.close(file)
            raise
        self._file = file
        return True

    def is_intact(self) -> bool:
        """Whether the locked file is still the one at the path: it may have been deleted or replaced."""
        try:
            return os.path.samestat(os.fstat(self._file), os.stat(self._lock))
        except OSError:
            return False

    def claim(self, key: str, number: float) -> None:
        """Write a claim; several threads may. Raises OSError."""
        with self._turn:
            self._write(
                Record(self.record.holder, 0.0, self.record.transitions, "", {**self.record.claims, key: number})
            )

    def release(self) -> None:
        """Release the lock."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self) -> Record:
        try:
            document: Any = json.loads(self._state.read_text(encoding="utf-8"))
            return Record(
                str(document["holder"]), 0.0, int(document["transitions"]), "", _claims(json.dumps(document["claims"]))
            )
        except (OSError, KeyError, TypeError, ValueError):
            return Record("", 0.0, self.record.transitions, "", self.record.claims)

    def _write(self, record: Record) -> None:
        """Write the record to the disk atomically."""
        temporary = self._state.with_suffix(".new")
        text = json.dumps({"holder": record.holder, "transitions": record.transitions, "claims": dict(record.claims)})
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._state)
        self.record = record


def network_file_system(path: Path, mounts: str = "/proc/self/mounts") -> str | None:
    """The type of the network file system that holds `path`; None for a local one, or if it is unknown."""
    try:
        rows = [line.split() for line in Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()]
        place = path.resolve()
    except OSError:
        return None
    parents = [row for row in rows if len(row) > 2 and place.is_relative_to(row[1].replace("\\040", " "))]
    parents.sort(key=lambda row: len(row[1]))  # the last mount of one place hides the earlier ones
    kind = parents[-1][2] if parents else ""
    return kind if kind.removeprefix("fuse.") in NETWORK_FILE_SYSTEMS else None
