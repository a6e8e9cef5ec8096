"""Objects of a cluster, as small as they can be and still be told apart."""

from typing import Any

Json = dict[str, Any]


def pod(
    name: str,
    namespace: str = "default",
    address: str = "10.0.0.1",
    port: int = 8000,
    *,
    ready: bool = True,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Json:
    """One that runs, with one port that is called http."""
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": labels if labels is not None else {"app": "llm"},
            "annotations": annotations or {},
        },
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "server", "ports": [{"name": "http", "containerPort": port}]}],
        },
        "status": {
            "phase": "Running",
            "podIP": address,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def endpoint_slice(
    name: str, service: str, *addresses: str, namespace: str = "default", port: int = 8000, ready: bool | None = True
) -> Json:
    """One of a service, with a pod behind each address."""
    return {
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": namespace, "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": [
            {
                "addresses": [address],
                "conditions": {"ready": ready},
                "targetRef": {"kind": "Pod", "name": f"{service}-{address.rpartition('.')[2]}"},
            }
            for address in addresses
        ],
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
    }
