"""Every container that is shipped is hardened, and the check of it misses nothing: it is tried on each with a setting taken away."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.deploy.hardening import beside, containers, daemon_faults, faults, owned
from tests.deploy.rendering import Manifest
from tests.deploy.shipped import MONITORING, RULES, discovering, flag

# What `prober run` says of its drain: --shutdown.timeout.
DRAIN = 20.0
Shipped = dict[str, list[Manifest]]
Whose = Callable[[dict[str, Any], dict[str, Any]], bool]
Placed = tuple[str, dict[str, Any], dict[str, Any], bool]


def placed_containers(shipped: Shipped) -> Iterator[Placed]:
    """Each of the prober's containers: where it is, its pod, itself, and whether it asks the API server; free to be changed."""
    for where, manifests in shipped.items():
        for manifest in manifests:
            for pod, container in copy.deepcopy(list(containers(manifest))):
                asks = runs(container) and (flag(container, "lease.name") is not None or discovering(manifests))
                yield f"{where}: {manifest['kind']}", pod, container, asks


def runs(container: dict[str, Any]) -> bool:
    """Whether it is a daemon; the Jobs of a gate end by themselves."""
    return bool(container["args"][0] == "run")


def wrongs(pod: dict[str, Any], container: dict[str, Any], asks: bool) -> list[str]:
    return faults(pod, container, asks=asks) + (daemon_faults(pod, container, DRAIN) if runs(container) else [])


def test_every_container_is_hardened(shipped: Shipped) -> None:
    """In each set there is a container of the prober's, and none lacks a setting; daemons are watched and have time to drain."""
    seen = {where: wrongs(pod, container, asks) for where, pod, container, asks in placed_containers(shipped)}
    assert {where.rpartition(": ")[0] for where in seen} == shipped.keys() - {
        MONITORING,
        RULES,
        "autoscaling",
        "scrapeconfig",
    }
    assert {where: wrong for where, wrong in seen.items() if wrong} == {}
    assert {where.rpartition(": ")[2] for where in seen} == {"Deployment", "StatefulSet", "Job", "AnalysisTemplate"}


def own(pod: dict[str, Any], container: dict[str, Any]) -> bool:
    """Whether the pod is the prober's own."""
    return not beside(container)


def daemon(pod: dict[str, Any], container: dict[str, Any]) -> bool:
    return runs(container)


def sidecar(pod: dict[str, Any], container: dict[str, Any]) -> bool:
    return beside(container)


def watched(pod: dict[str, Any], container: dict[str, Any]) -> bool:
    """Whether it is a daemon of its own."""
    return runs(container) and not beside(container)


def anything(pod: dict[str, Any], container: dict[str, Any]) -> bool:
    return True


# Settings without which a container is told of, and whose they are.
TAKEN: dict[str, Whose] = {
    "securityContext.fsGroup": owned,
    **dict.fromkeys(("automountServiceAccountToken", "enableServiceLinks"), own),
    **dict.fromkeys(("livenessProbe", "readinessProbe", "topologySpreadConstraints"), watched),
    **dict.fromkeys(("resources.requests", "resources.requests.cpu", "resources.requests.memory", "resources.limits"), anything),
    **{
        f"securityContext.{name}": anything
        for name in (
            *("runAsNonRoot", "runAsUser", "runAsGroup", "seccompProfile", "allowPrivilegeEscalation"),
            *("readOnlyRootFilesystem", "capabilities"),
        )
    },
}  # fmt: skip
BOTH = {"cpu": 1, "memory": 1}
PROBE = {"httpGet": {"path": "/-/ready", "port": 1}}
# Settings with which it is told of: of the pod, or of the container.
GIVEN: list[tuple[Whose, str, str, Any]] = [
    (anything, "pod", "hostNetwork", True),
    (anything, "pod", "hostPID", True),
    (anything, "pod", "volumes", [{"name": "host", "hostPath": {"path": "/"}}]),
    (anything, "pod", "volumes", [{"name": "far", "nfs": {"server": "files.example", "path": "/"}}]),
    (anything, "container", "ports", [{"name": "http", "containerPort": 9742, "hostPort": 9742}]),
    (anything, "container", "resources", {"requests": BOTH, "limits": {"memory": 1, "gpu": 1}}),
    (daemon, "pod", "terminationGracePeriodSeconds", 15),  # too little to drain
    (daemon, "container", "startupProbe", PROBE),  # would hold an engine up
    (sidecar, "container", "livenessProbe", PROBE),  # takes the engine out of service with it
    (sidecar, "container", "readinessProbe", PROBE),
    (sidecar, "container", "args", ["run"]),  # ends when it cannot begin
]


def taken(here: dict[str, Any], path: str) -> bool:
    """Whether it was there; now it is not."""
    *parents, last = path.split(".")
    for part in parents:
        here = here.get(part, {})
    return here.pop(last, None) is not None


@pytest.mark.parametrize("path", TAKEN)
def test_the_check_misses_no_setting(shipped: Shipped, path: str) -> None:
    """Each container that should have it is told of when neither it nor its pod has it any more."""
    tried = [placed for placed in placed_containers(shipped) if TAKEN[path](placed[1], placed[2])]
    assert tried
    for where, pod, container, asks in tried:
        assert any([taken(pod, path), taken(container, path)]), where
        assert wrongs(pod, container, asks), where


@pytest.mark.parametrize(("whose", "where", "name", "value"), GIVEN, ids=[f"{row[2]} {row[3]}" for row in GIVEN])
def test_the_check_sees_what_must_not_be(shipped: Shipped, whose: Whose, where: str, name: str, value: Any) -> None:
    """Each container with it, or in a pod with it, is told of."""
    tried = [placed for placed in placed_containers(shipped) if whose(placed[1], placed[2])]
    assert tried
    for place, pod, container, asks in tried:
        {"pod": pod, "container": container}[where][name] = value
        assert wrongs(pod, container, asks), place


def test_the_check_sees_a_token_that_nobody_asked_for(shipped: Shipped) -> None:
    """And one that is missing."""
    for where, pod, container, asks in placed_containers(shipped):
        if not beside(container):
            pod["automountServiceAccountToken"] = not asks
            assert wrongs(pod, container, asks), where
