"""The record of a lease in a Kubernetes Lease."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from prober.features.replicas.lease_machine import Record, Write
from prober.net.kubernetes import Api, Json, KubernetesApiError, Unreachable

CLAIMS_ANNOTATION = "llm-slo-prober/swept"  # a JSON object
LABELS = {"app.kubernetes.io/name": "llm-slo-prober"}  # by which an uninstall finds the Leases
MAX_HOLDER_LENGTH = 500
_MICRO_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"


class Conflict(Exception):
    """The record has another version."""


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
