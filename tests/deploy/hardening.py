"""Settings that every container of the prober must have: PodSecurity `restricted`, and the needs of an instrument."""

from collections.abc import Iterator
from typing import Any

IMAGE = "llm-slo-prober"
PROBED = ("livenessProbe", "readinessProbe")
VOLUMES = ("configMap", "downwardAPI", "emptyDir", "persistentVolumeClaim", "projected", "secret")
"""Those of PodSecurity `restricted`, less the ones that drivers bring (`csi`, `ephemeral`)."""


def pod_specs(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Of a workload, or of the Jobs within an AnalysisTemplate."""
    spec = manifest.get("spec", {})
    if "template" in spec:
        yield spec["template"]["spec"]
    for metric in spec.get("metrics", ()) if manifest["kind"] == "AnalysisTemplate" else ():
        if "job" in metric["provider"]:
            yield metric["provider"]["job"]["spec"]["template"]["spec"]


def containers(manifest: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The prober's containers, each with its pod; an engine's are its owner's."""
    for pod in pod_specs(manifest):
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            if of_prober(container):
                yield pod, container


def of_prober(container: dict[str, Any]) -> bool:
    """Whether its image is the prober's, in whichever registry."""
    return bool(container["image"].rpartition("/")[2].split("@")[0].split(":")[0] == IMAGE)


def faults(pod: dict[str, Any], container: dict[str, Any], *, asks: bool = False) -> list[str]:
    """Everything that is missing or too much, in words. asks: it asks the API server."""
    own = container.get("securityContext", {})
    context = {**pod.get("securityContext", {}), **own}
    resources = container.get("resources", {})
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    ours = not beside(container)  # else the pod is its engine's
    requirements = {
        "runAsNonRoot": context.get("runAsNonRoot") is True,
        "runAsUser 65532": context.get("runAsUser") == 65532,
        "runAsGroup 65532": context.get("runAsGroup") == 65532,
        "fsGroup 65532, to write a volume or read a Secret": not owned(pod, container)
        or context.get("fsGroup") == 65532,
        "seccompProfile RuntimeDefault": context.get("seccompProfile") == {"type": "RuntimeDefault"},
        "allowPrivilegeEscalation false": own.get("allowPrivilegeEscalation") is False,
        "readOnlyRootFilesystem": own.get("readOnlyRootFilesystem") is True,
        "capabilities dropped, none added": own.get("capabilities") == {"drop": ["ALL"]},
        "not privileged": not own.get("privileged"),
        "nothing of the host": not any(pod.get(name) for name in ("hostNetwork", "hostPID", "hostIPC")),
        "no port of the host": not any("hostPort" in port for port in container.get("ports", ())),
        "volumes that restricted knows": all(volume.keys() <= {"name", *VOLUMES} for volume in pod.get("volumes", ())),
        "request of CPU": "cpu" in requests,
        "request of memory": "memory" in requests,
        "limit of memory": "memory" in limits,
        "no GPU of its own": not any("gpu" in name for name in (*limits, *requests)),
        "a token if it asks, else none": not ours or pod.get("automountServiceAccountToken") is asks,
        "no addresses of Services in its environment": not ours or pod.get("enableServiceLinks") is False,
    }
    return [name for name, held in requirements.items() if not held]


def beside(container: dict[str, Any]) -> bool:
    """Whether it is a native sidecar."""
    return container.get("restartPolicy") == "Always"


def owned(pod: dict[str, Any], container: dict[str, Any]) -> bool:
    """Whether it mounts what only the pod's group may use: claims (those of a StatefulSet are not named in the pod) and Secrets."""
    shared = {
        volume["name"] for volume in pod.get("volumes", ()) if volume.keys() & {"configMap", "emptyDir", "downwardAPI"}
    }
    return any(mount["name"] not in shared for mount in container.get("volumeMounts", ()))


def daemon_faults(pod: dict[str, Any], container: dict[str, Any], drain: float) -> list[str]:
    """The same of a container that runs for ever. drain: how long it takes to end, in seconds."""
    sidecar = beside(container)
    paths = {name: container.get(name, {}).get("httpGet", {}).get("path") for name in (*PROBED, "startupProbe")}
    requirements = {
        # An instrument that is ill must not take its engine out of service, nor hold it up: a sidecar has no probe at all.
        "liveness at /-/healthy, unless beside an engine": paths["livenessProbe"]
        == (None if sidecar else "/-/healthy"),
        "keeps running beside an engine": not sidecar or "--keep-running" in container["args"],
        "readiness, unless beside an engine": paths["readinessProbe"] == (None if sidecar else "/-/ready"),
        "no startup probe": paths["startupProbe"] is None,
        "time to drain": pod.get("terminationGracePeriodSeconds", 30) > drain,
        "spread over nodes": sidecar or bool(pod.get("topologySpreadConstraints")),
    }
    return [name for name, held in requirements.items() if not held]
