"""Where a lease is kept: a Kubernetes Lease, or a file that the kernel locks for one process of this machine."""

import fcntl
import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from prober.features.replicas.lease_machine import Record, Write
from prober.net.kubernetes import Api, Json, KubernetesApiError, Unreachable

SWEPT = "llm-slo-prober/swept"  # annotation: claims, as a JSON object
LONGEST = 500  # characters of a holder's name; our own are much shorter
_MICRO_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
REMOTE = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "gpfs", "beegfs"),
        *("glusterfs", "sshfs", "s3fs"),
    }
)


class Beaten(Exception):
    """The record was another one meanwhile."""


class Unusable(OSError):
    """A folder that cannot keep a lease; the message names it and says what to do."""


def now_s() -> float:
    """Seconds of a clock that never goes back and counts while the machine sleeps, which the monotonic one does not."""
    return time.clock_gettime(_CLOCK)


class KubernetesLease:
    """One object of coordination.k8s.io/v1; what others wrote into it (labels, annotations, fields) is kept."""

    def __init__(self, api: Api, namespace: str, name: str) -> None:
        self._api, self._namespace, self._name = api, namespace, name
        self._folder = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._last: Json = {}

    def __str__(self) -> str:
        return f"{self._namespace}/{self._name}"

    async def read(self, timeout_s: float) -> Record | None:
        """As it is now; None: there is none. Raises KubernetesApiError, Unreachable."""
        try:
            self._last = await self._api.get(f"{self._folder}/{self._name}", timeout_s=timeout_s)
        except KubernetesApiError as refusal:
            if refusal.status != 404:
                raise
            self._last = {}
            return None
        return self._record()

    async def write(self, write: Write, timeout_s: float) -> str:
        """Its new version. Raises Beaten, KubernetesApiError, Unreachable."""
        body = _body(self._last, self._name, write, datetime.now(UTC))
        try:
            if write.record.version:
                kept = await self._api.replace(f"{self._folder}/{self._name}", body, timeout_s=timeout_s)
            else:
                kept = await self._api.create(self._folder, body, timeout_s=timeout_s)
        except KubernetesApiError as refusal:
            if refusal.status not in (404, 409):  # 404: deleted since it was read
                raise
            raise Beaten from None
        self._last = kept
        return self._record().version

    def _record(self) -> Record:
        """What is said of it, to people too, has no token in it. Raises Unreachable."""
        redactor = self._api.redactor
        try:
            found = record_of(self._last)
        except Unreachable as problem:
            raise Unreachable(redactor.redact(str(problem))) from None
        return replace(found, holder=redactor.redact(found.holder))

    async def close(self) -> None:
        """End its connections."""
        await self._api.close()


def record_of(body: Json) -> Record:
    """What a Lease says. Raises Unreachable if it is none."""
    spec, about = body.get("spec") or {}, body.get("metadata") or {}
    try:
        return Record(
            holder=str(spec.get("holderIdentity") or "")[:LONGEST],
            lease_s=float(spec.get("leaseDurationSeconds") or 0),
            transitions=int(spec.get("leaseTransitions") or 0),
            version=str(about["resourceVersion"]),
            claims=_claims((about.get("annotations") or {}).get(SWEPT)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise Unreachable(f"not a Lease: {type(problem).__name__}: {str(problem)[:200]}") from None


def _claims(text: str | None) -> Mapping[str, float]:
    """None, where somebody wrote something else."""
    try:
        found = json.loads(text or "{}")
        return {str(key): float(number) for key, number in found.items()}
    except (AttributeError, TypeError, ValueError):
        return {}


def _body(last: Json, name: str, write: Write, now: datetime) -> Json:
    record, about, spec = write.record, dict(last.get("metadata") or {}), dict(last.get("spec") or {})
    about["name"] = name
    about.pop("resourceVersion", None)
    if record.version:
        about["resourceVersion"] = record.version
    else:
        about, spec = {"name": name}, {}
    claims = json.dumps(dict(record.claims), separators=(",", ":"))
    about["annotations"] = {**(about.get("annotations") or {}), SWEPT: claims}
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
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": about, "spec": spec}


class FileLease:
    """A file in a folder of this machine. Held until it is released or its process ends, however that ends.

    Whoever stands still goes on holding it: nobody takes it over then, and nobody holds it twice. Methods block on the disk.
    """

    def __init__(self, folder: str, name: str) -> None:
        """Raises Unusable: not writable, or on a network file system, where locks of several machines cannot be relied on."""
        path = Path(folder)
        self._lock, self._state = path / f"{name}.lock", path / f"{name}.json"
        self._file = -1
        self.record = Record("", 0.0, -1)
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not os.access(path, os.W_OK):
                raise PermissionError(13, "the folder is not writable")
        except OSError as problem:
            raise Unusable(
                f"--lease.path {folder}: cannot be used: {problem}; name a folder that all replicas can write to"
            ) from None
        if kind := remote(path):
            raise Unusable(
                f"--lease.path {folder}: is on {kind}, whose locks cannot be relied on; name a folder on a local disk, or use "
                "--lease.name with a Kubernetes API server"
            )

    def __str__(self) -> str:
        return str(self._lock)

    def take(self, holder: str) -> bool:
        """Whether it is held now; it was taken from nobody. Raises OSError."""
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

    def kept(self) -> bool:
        """Whether what is locked is still the file that others would lock: somebody may have deleted it."""
        try:
            here, there = os.fstat(self._file), os.stat(self._lock)
        except OSError:
            return False
        return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)

    def claim(self, key: str, number: float) -> None:
        """Write it down for those that follow. Raises OSError."""
        self._write(Record(self.record.holder, 0.0, self.record.transitions, "", {**self.record.claims, key: number}))

    def release(self) -> None:
        """Let others have it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _read(self) -> Record:
        try:
            found: Any = json.loads(self._state.read_text(encoding="utf-8"))
            return Record(
                str(found["holder"]), 0.0, int(found["transitions"]), "", _claims(json.dumps(found["claims"]))
            )
        except (OSError, KeyError, TypeError, ValueError):
            return Record("", 0.0, self.record.transitions, "", self.record.claims)

    def _write(self, record: Record) -> None:
        """All of it or nothing, and on the disk."""
        aside = self._state.with_suffix(".new")
        text = json.dumps({"holder": record.holder, "transitions": record.transitions, "claims": dict(record.claims)})
        with aside.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self._state)
        self.record = record


def remote(path: Path, mounts: str = "/proc/self/mounts") -> str | None:
    """The kind of network file system that `path` is on, None for a local one, or where that cannot be told."""
    try:
        rows = [line.split() for line in Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()]
        place = path.resolve()
    except OSError:
        return None
    under = [row for row in rows if len(row) > 2 and place.is_relative_to(row[1].replace("\\040", " "))]
    under.sort(key=lambda row: len(row[1]))  # the last mounted of one place hides the others
    kind = under[-1][2] if under else ""
    return kind if kind.removeprefix("fuse.") in REMOTE else None
