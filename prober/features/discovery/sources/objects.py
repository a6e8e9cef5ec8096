"""Pods and endpoint slices to the labels of their targets, as Prometheus names them."""

import re
from collections.abc import Collection, Iterator
from typing import Any

from prober.config.discovery import KubernetesSpec
from prober.features.discovery.sources.findings import Found

Json = dict[str, Any]
LONGEST = 1_024  # characters of an annotation or label; what is longer is cut
_OTHER = re.compile(r"[^a-zA-Z0-9_]")


def targets(item: Json, spec: KubernetesSpec, kept: Collection[str]) -> Found:
    """What an object has; none where it is not ready or has not the annotations. kept: which labels are.

    One without `__address__` has no port that could be meant.
    """
    about = item.get("metadata") or {}
    annotations = about.get("annotations") or {}
    if any(annotations.get(name) != value for name, value in spec.annotations.items()):
        return ()
    found = _pod(item, about, spec) if spec.role == "pod" else _slice(item, about, spec)
    always = ("__address__", "name")
    return tuple(
        {name: str(value)[:LONGEST] for name, value in labels if value and (name in kept or name in always)}
        for labels in found
    )


def _pod(item: Json, about: Json, spec: KubernetesSpec) -> Iterator[Iterator[tuple[str, Any]]]:
    status, inside = item.get("status") or {}, item.get("spec") or {}
    ready = any(each.get("type") == "Ready" and each.get("status") == "True" for each in status.get("conditions") or ())
    address, phase = status.get("podIP"), status.get("phase")
    if not address or phase in ("Succeeded", "Failed") or about.get("deletionTimestamp"):
        return
    if not spec.unready and not (ready and phase == "Running"):
        return
    container, port = _pod_port(inside, (about.get("annotations") or {}).get(spec.port_annotation or ""), spec.port)
    owner: Json = next((each for each in about.get("ownerReferences") or () if each.get("controller")), {})

    def labels() -> Iterator[tuple[str, Any]]:
        prefix = "__meta_kubernetes_pod_"
        if port is not None:
            yield "__address__", _joined(address, port.get("containerPort"))
            yield f"{prefix}container_port_number", port.get("containerPort")
            yield f"{prefix}container_port_name", port.get("name")
        yield "name", f"{about.get('namespace')}/{about.get('name')}"
        yield "__meta_kubernetes_namespace", about.get("namespace")
        yield f"{prefix}name", about.get("name")
        yield f"{prefix}ip", address
        yield f"{prefix}phase", phase
        yield f"{prefix}ready", "true" if ready else "false"
        yield f"{prefix}node_name", inside.get("nodeName")
        yield f"{prefix}container_name", container
        yield f"{prefix}controller_kind", owner.get("kind")
        yield f"{prefix}controller_name", owner.get("name")
        yield from _written(about, prefix)

    yield labels()


def _pod_port(inside: Json, annotated: str | None, wanted: int | str | None) -> tuple[str | None, Json | None]:
    """(container, port) of the one that is meant: by annotation, by number, by name, or as the only one; None for none."""
    if annotated:
        wanted = int(annotated) if annotated.isdecimal() else annotated
    declared: list[tuple[str | None, Json]] = [
        (each.get("name"), port) for each in inside.get("containers") or () for port in each.get("ports") or ()
    ]
    if wanted is None:
        return declared[0] if len(declared) == 1 else (None, None)
    key = "containerPort" if isinstance(wanted, int) else "name"
    for container, port in declared:
        if port.get(key) == wanted:
            return container, port
    return None, {"containerPort": wanted} if isinstance(wanted, int) else None


def _slice(item: Json, about: Json, spec: KubernetesSpec) -> Iterator[Iterator[tuple[str, Any]]]:
    ports = item.get("ports") or []
    if spec.port is None:
        port = ports[0] if len(ports) == 1 else None
    else:
        key = "port" if isinstance(spec.port, int) else "name"
        port = next((each for each in ports if each.get(key) == spec.port), None)
    for endpoint in item.get("endpoints") or ():
        conditions = endpoint.get("conditions") or {}
        # An absent condition is to be taken for ready (Kubernetes API, EndpointConditions).
        if (conditions.get("ready") is False and not spec.unready) or not endpoint.get("addresses"):
            continue
        yield _endpoint(endpoint, conditions, port, item, about)


def _endpoint(
    endpoint: Json, conditions: Json, port: Json | None, item: Json, about: Json
) -> Iterator[tuple[str, Any]]:
    prefix = "__meta_kubernetes_endpointslice_"
    address, behind = endpoint["addresses"][0], endpoint.get("targetRef") or {}
    service = (about.get("labels") or {}).get("kubernetes.io/service-name")
    if port is not None:
        yield "__address__", _joined(address, port.get("port"))
        yield f"{prefix}port", port.get("port")
        yield f"{prefix}port_name", port.get("name")
    yield "name", f"{about.get('namespace')}/{service or about.get('name')}/{behind.get('name') or address}"
    yield "__meta_kubernetes_namespace", about.get("namespace")
    yield "__meta_kubernetes_service_name", service
    yield f"{prefix}name", about.get("name")
    yield f"{prefix}address_type", item.get("addressType")
    yield f"{prefix}address_target_kind", behind.get("kind")
    yield f"{prefix}address_target_name", behind.get("name")
    for condition in ("ready", "serving", "terminating"):
        if conditions.get(condition) is not None:
            yield f"{prefix}endpoint_conditions_{condition}", "true" if conditions[condition] else "false"
    yield f"{prefix}endpoint_hostname", endpoint.get("hostname")
    yield f"{prefix}endpoint_node_name", endpoint.get("nodeName")
    yield f"{prefix}endpoint_zone", endpoint.get("zone")
    yield from _written(about, prefix)


def _written(about: Json, prefix: str) -> Iterator[tuple[str, Any]]:
    """Labels and annotations, in names that Prometheus allows."""
    for kind in ("labels", "annotations"):
        for name, value in (about.get(kind) or {}).items():
            yield f"{prefix}{kind[:-1]}_{_OTHER.sub('_', name)}", value


def _joined(address: str, port: Any) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
