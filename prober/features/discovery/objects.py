"""Labels of the targets in Kubernetes pods and endpoint slices, with the label names of Prometheus."""

import re
from collections.abc import Collection, Container, Iterator
from typing import Any

from prober.config.discovery import KubernetesSpec
from prober.features.discovery.discovered_targets import TargetLabels

Json = dict[str, Any]
MAX_VALUE_CHARS = 1_024  # of an annotation or label; longer values are cut
_PORT_NUMBER = re.compile(r"[0-9]{1,5}")
_OTHER = re.compile(r"[^a-zA-Z0-9_]")


def targets_of(item: Json, spec: KubernetesSpec, label_names: Container[str], known: TargetLabels = ()) -> TargetLabels:
    """Labels of the targets of an object; none if it is not ready, is terminating, or lacks the annotations.

    label_names: the labels to keep. known: labels of the object's targets so far; a known target that is not ready stays until it
    terminates, because it has a fault, or its kubelet is unreachable. There is no `__address__` if the port is ambiguous or missing.
    """
    metadata = item.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    if any(annotations.get(name) != value for name, value in spec.annotations.items()):
        return ()
    addresses = {labels.get("__address__", "") for labels in known}
    targets = (_pod if spec.role == "pod" else _slice)(item, metadata, spec, addresses)
    always = ("__address__", "name")
    return tuple(
        {
            name: str(value)[:MAX_VALUE_CHARS]
            for name, value in labels
            if value and (name in label_names or name in always)
        }
        for labels in targets
    )


def _pod(
    item: Json, metadata: Json, spec: KubernetesSpec, known: Collection[str]
) -> Iterator[Iterator[tuple[str, Any]]]:
    status, pod_spec = item.get("status") or {}, item.get("spec") or {}
    conditions = status.get("conditions") or ()
    ready = any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)
    address, phase = status.get("podIP"), status.get("phase")
    if not address or phase in ("Succeeded", "Failed") or metadata.get("deletionTimestamp"):
        return
    container, port = _pod_port(
        pod_spec, (metadata.get("annotations") or {}).get(spec.port_annotation or ""), spec.port
    )
    is_known = port is not None and _joined(address, port.get("containerPort")) in known
    if not (spec.unready or is_known or (ready and phase == "Running")):
        return
    owner: Json = next((owner for owner in metadata.get("ownerReferences") or () if owner.get("controller")), {})

    def labels() -> Iterator[tuple[str, Any]]:
        prefix = "__meta_kubernetes_pod_"
        if port is not None:
            yield "__address__", _joined(address, port.get("containerPort"))
            yield f"{prefix}container_port_number", port.get("containerPort")
            yield f"{prefix}container_port_name", port.get("name")
        yield "name", f"{metadata.get('namespace')}/{metadata.get('name')}"
        yield "__meta_kubernetes_namespace", metadata.get("namespace")
        yield f"{prefix}name", metadata.get("name")
        yield f"{prefix}ip", address
        yield f"{prefix}phase", phase
        yield f"{prefix}ready", "true" if ready else "false"
        yield f"{prefix}node_name", pod_spec.get("nodeName")
        yield f"{prefix}container_name", container
        yield f"{prefix}controller_kind", owner.get("kind")
        yield f"{prefix}controller_name", owner.get("name")
        yield from _metadata_labels(metadata, prefix)

    yield labels()


def _pod_port(pod_spec: Json, annotated: str | None, port_or_name: int | str | None) -> tuple[str | None, Json | None]:
    """(container, port) that the annotation, `port_or_name` or the only declared port selects; None for an undeclared one."""
    if annotated:
        port_or_name = int(annotated) if _PORT_NUMBER.fullmatch(annotated) else annotated
    declared: list[tuple[str | None, Json]] = [
        (container.get("name"), port)
        for container in pod_spec.get("containers") or ()
        for port in container.get("ports") or ()
    ]
    if port_or_name is None:
        return declared[0] if len(declared) == 1 else (None, None)
    key = "containerPort" if isinstance(port_or_name, int) else "name"
    for container, port in declared:
        if port.get(key) == port_or_name:
            return container, port
    return None, {"containerPort": port_or_name} if isinstance(port_or_name, int) else None


def _slice(
    item: Json, metadata: Json, spec: KubernetesSpec, known: Collection[str]
) -> Iterator[Iterator[tuple[str, Any]]]:
    ports = item.get("ports") or []
    if spec.port is None:
        port = ports[0] if len(ports) == 1 else None
    else:
        key = "port" if isinstance(spec.port, int) else "name"
        port = next((port for port in ports if port.get(key) == spec.port), None)
    for endpoint in item.get("endpoints") or ():
        conditions = endpoint.get("conditions") or {}
        if not endpoint.get("addresses"):
            continue
        is_known = port is not None and _joined(endpoint["addresses"][0], port.get("port")) in known
        stays = spec.unready or (is_known and not conditions.get("terminating"))
        if conditions.get("ready") is False and not stays:  # absent means ready (Kubernetes API, EndpointConditions)
            continue
        yield _endpoint(endpoint, conditions, port, item, metadata)


def _endpoint(
    endpoint: Json, conditions: Json, port: Json | None, item: Json, metadata: Json
) -> Iterator[tuple[str, Any]]:
    prefix = "__meta_kubernetes_endpointslice_"
    address, reference = endpoint["addresses"][0], endpoint.get("targetRef") or {}
    service = (metadata.get("labels") or {}).get("kubernetes.io/service-name")
    if port is not None:
        yield "__address__", _joined(address, port.get("port"))
        yield f"{prefix}port", port.get("port")
        yield f"{prefix}port_name", port.get("name")
    yield "name", f"{metadata.get('namespace')}/{service or metadata.get('name')}/{reference.get('name') or address}"
    yield "__meta_kubernetes_namespace", metadata.get("namespace")
    yield "__meta_kubernetes_service_name", service
    yield f"{prefix}name", metadata.get("name")
    yield f"{prefix}address_type", item.get("addressType")
    yield f"{prefix}address_target_kind", reference.get("kind")
    yield f"{prefix}address_target_name", reference.get("name")
    for condition in ("ready", "serving", "terminating"):
        if conditions.get(condition) is not None:
            yield f"{prefix}endpoint_conditions_{condition}", "true" if conditions[condition] else "false"
    yield f"{prefix}endpoint_hostname", endpoint.get("hostname")
    yield f"{prefix}endpoint_node_name", endpoint.get("nodeName")
    yield f"{prefix}endpoint_zone", endpoint.get("zone")
    yield from _metadata_labels(metadata, prefix)


def _metadata_labels(metadata: Json, prefix: str) -> Iterator[tuple[str, Any]]:
    """Labels and annotations of the object; characters that Prometheus forbids become `_`."""
    for kind in ("labels", "annotations"):
        for name, value in (metadata.get(kind) or {}).items():
            yield f"{prefix}{kind[:-1]}_{_OTHER.sub('_', name)}", value


def _joined(address: str, port: Any) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
