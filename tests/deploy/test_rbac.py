"""The prober may do in a cluster what it does, and nothing else: each verb that its code uses, by its roles, tokens and policies."""

import ipaddress
from typing import Any

import pytest

from prober.config.hosts import REFUSED
from prober.net.kubernetes import Api
from tests.deploy.asking import Following, discovery, leased
from tests.deploy.rendering import Manifest
from tests.deploy.shipped import STANDALONE, configuration, discovering, flag, one, workload
from tests.kubernetes.apiserver import GROUPS, ApiServer

VERBS = {
    "LIST": "list",
    "WATCH": "watch",
    "GET": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
API_SERVERS = ("10.96.0.1", "192.0.2.7", "fd00:10:96::1")
"""Addresses that one may have: of its Service, of a machine outside, and of IPv6."""

Leave = tuple[str, str, str]  # to do what (verb), with which group's resource


def roles(manifests: list[Manifest]) -> list[Manifest]:
    """Those of the prober's service account; each is bound to it once, in its own namespace, and to nobody else."""
    account = one(manifests, "ServiceAccount")["metadata"]["name"]
    bindings = [manifest for manifest in manifests if manifest["kind"] in ("RoleBinding", "ClusterRoleBinding")]
    assert {binding["kind"] for binding in bindings} <= {"RoleBinding"}
    assert {(subject["kind"], subject["name"]) for binding in bindings for subject in binding["subjects"]} <= {
        ("ServiceAccount", account)
    }
    declared = [manifest for manifest in manifests if manifest["kind"] in ("Role", "ClusterRole")]
    placed = [(role["metadata"].get("namespace"), role["kind"], role["metadata"]["name"]) for role in declared]
    bound = [
        (binding["metadata"].get("namespace"), binding["roleRef"]["kind"], binding["roleRef"]["name"])
        for binding in bindings
    ]
    assert sorted(placed, key=str) == sorted(bound, key=str)
    return declared


def leave(manifests: list[Manifest]) -> set[Leave]:
    """The permissions of the roles."""
    return {
        (verb, group, resource)
        for role in roles(manifests)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


async def used(server: ApiServer, *, discovers: bool, leases: bool) -> set[Leave]:
    """The permissions that the code used in a complete run."""
    if discovers:
        for role in ("pod", "endpointslice"):
            async with Following(discovery(role, server.url(role), "llm")) as following:
                await server.watched(role)
            assert following.discovered.complete
            assert not following.discovered.problems
    if leases:
        api = Api(server.url("lease"), namespace="llm")
        await leased(api, "llm", "llm-slo-prober-0")
        await api.close()
    calls = {tuple(call.split()) for call in server.asked}
    groups = {resource: path.split("/")[2] if path.startswith("/apis/") else "" for resource, path in GROUPS.items()}
    return {(VERBS[verb], groups[resource], resource) for verb, resource in calls}


@pytest.mark.parametrize("where", STANDALONE)
async def test_the_roles_give_what_the_code_asks_for(shipped: dict[str, list[Manifest]], where: str) -> None:
    """No verb too few, none too many; no role at all where nothing is asked."""
    manifests = shipped[where]
    ((_, container),) = [(pod, pod["containers"][0]) for pod in [workload(manifests)["spec"]["template"]["spec"]]]
    async with ApiServer() as server:
        needed = await used(server, discovers=discovering(manifests), leases=flag(container, "lease.name") is not None)
    assert leave(manifests) == needed


@pytest.mark.parametrize("where", ["overlays/fleet", "chart, sharded", "chart, as overlays/fleet"])
def test_shards_leases_and_replicas_agree(shipped: dict[str, list[Manifest]], where: str) -> None:
    """There are as many shards as replicas, whose leases may be changed by name; all start at once and are replaced one at a time."""
    manifests = shipped[where]
    spec = workload(manifests)["spec"]
    container = spec["template"]["spec"]["containers"][0]
    assert flag(container, "shard") == f"ordinal/{spec['replicas']}"
    (named,) = (
        rule
        for role in roles(manifests)
        for rule in role["rules"]
        if rule["resources"] == ["leases"] and "resourceNames" in rule
    )
    name = flag(container, "lease.name")
    allowed = named["resourceNames"]
    assert allowed == [f"{name}-{shard}" for shard in range(len(allowed))]
    assert len(allowed) >= spec["replicas"]
    assert spec["podManagementPolicy"] == "Parallel"
    assert one(manifests, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    assert [claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]] == ["storage"]
    assert {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}} in container["env"]


def test_discovery_is_in_the_namespaces_that_the_roles_are_in(shipped: dict[str, list[Manifest]]) -> None:
    """Those of the configuration; none named is the prober's own, which is `llm` for the chart."""
    for where in STANDALONE:
        manifests = shipped[where]
        searched = {
            namespace
            for discovery in configuration(manifests).get("discovery") or ()
            if "kubernetes" in discovery
            for namespace in discovery["kubernetes"].get("namespaces") or ["llm"]
        }
        allowed = {
            role["metadata"].get("namespace", "llm")
            for role in roles(manifests)
            if role["metadata"]["name"].endswith("-discovery")
        }
        assert searched == allowed, where


def let_out(policy: dict[str, Any], address: str, port: int) -> bool:
    """Whether that NetworkPolicy lets its pods connect there by TCP."""

    def to(peer: dict[str, Any]) -> bool:
        block = peer.get("ipBlock")
        if block is None:
            return False
        here = ipaddress.ip_address(address)
        within = [ipaddress.ip_network(cidr) for cidr in (block["cidr"], *block.get("except", ()))]
        return here in within[0] and not any(here in network for network in within[1:])

    def by(rule: dict[str, Any]) -> bool:
        ports = rule.get("ports")
        return ports is None or any(
            rule.get("protocol", "TCP") == "TCP" and rule.get("port", port) == port for rule in ports
        )

    return any(by(rule) and ("to" not in rule or any(map(to, rule["to"]))) for rule in policy["egress"])


@pytest.mark.parametrize("address", API_SERVERS)
def test_the_policy_lets_it_reach_the_api_server(shipped: dict[str, list[Manifest]], address: str) -> None:
    """Wherever that is, but never the cloud's metadata; a policy that leads to engines only is told."""
    narrow = "chart, everything on"
    assert not let_out(one(shipped[narrow], "NetworkPolicy")["spec"], address, 443)
    assert let_out(one(shipped[narrow], "NetworkPolicy")["spec"], "198.51.100.7", 8000)
    for where in set(STANDALONE) - {narrow}:
        policy = one(shipped[where], "NetworkPolicy")["spec"]
        assert let_out(policy, address, 443), where
        assert let_out(policy, address, 6443), where
        for network in REFUSED:
            assert not let_out(policy, str(network[0]), 80), where
            assert not let_out(policy, str(network[-1]), 80), where
