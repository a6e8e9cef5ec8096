"""A real API server takes the manifests, and the prober's discovery and leases work with it. `make test-cluster`.

What no server checks here: nothing runs the pods, so that NetworkPolicies, probes of the kubelet and volumes do nothing.
"""

import asyncio
import copy
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from prober.features.replicas.leadership import Conflict, KubernetesLease
from prober.features.replicas.lease_machine import Record, Write
from prober.net.kubernetes import Api, KubernetesApiError
from tests.cluster.kinds import POLICY, as_of, definitions
from tests.cluster.server import PATCH, UNCACHED, Server
from tests.deploy.asking import Following, discovery, leased
from tests.deploy.hardening import of_prober, pod_specs
from tests.deploy.rendering import FULLNAME, Manifest, chart
from tests.deploy.shipped import CHARTS, OVERLAYS, SHARDED, flag, one, sets, workload
from tests.processes import Daemon, Mock, get, until

Json = dict[str, Any]
NAMESPACE = "llm"  # where the chart is rendered for
ACCOUNT = (NAMESPACE, FULLNAME)
EVERYTHING = [*OVERLAYS, *CHARTS, "rollouts"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    apiserver, etcd = (Path(os.environ[name]) for name in ("APISERVER", "ETCD"))
    with Server(apiserver, etcd, tmp_path_factory.mktemp("cluster")) as running:
        if running.version < (1, 25):
            running.made("/apis/policy/v1beta1/podsecuritypolicies", POLICY)
        made = [
            running.made("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", each)
            for each in definitions(running.version)
        ]
        for each in made:
            group, version, plural = (
                each["spec"]["group"],
                each["spec"]["versions"][0]["name"],
                each["spec"]["names"]["plural"],
            )
            path = f"/apis/{group}/{version}/{plural}"
            until(lambda path=path: running.ask("GET", path)[0] == 200, path)  # type: ignore[misc]
        print(json.dumps({"kube-apiserver": ".".join(map(str, running.version)), "kinds of others": len(made)}))
        yield running


@pytest.fixture(scope="module")
def manifests() -> dict[str, list[Manifest]]:
    return sets(Path("kubectl"))


@pytest.fixture(scope="module")
def sharded(server: Server) -> Server:
    """With the namespace of a chart of several probers, and another that they look for engines in, and neither's prober running."""
    for name in (NAMESPACE, "research"):
        server.namespace(name)
    apply(server, NAMESPACE, chart(**SHARDED))
    return server


@pytest.fixture(autouse=True)
async def goodbyes() -> AsyncIterator[None]:
    """A connection that was broken off has a moment to end its TLS, as in a process that goes on."""
    yield
    await asyncio.sleep(0.2)


def kubectl(server: Server, *words: str, said: str | None = None) -> str:
    """What it prints. Fails the test with its words where it fails."""
    done = subprocess.run(
        ["kubectl", f"--kubeconfig={server.kubeconfig}", *words],
        input=said,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def apply(server: Server, namespace: str, manifests: list[Manifest]) -> list[Manifest]:
    """`kubectl apply --server-side` of all at once; what the server keeps of each."""
    items = [as_of(each, server.version) for each in manifests]
    for each in items:
        each["metadata"].setdefault("namespace", namespace)
    sent = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    kept = json.loads(kubectl(server, "apply", "--server-side", "--filename=-", "--output=json", said=sent))
    return list(kept["items"]) if kept["kind"] == "List" else [kept]


def lost(sent: Any, kept: Any, where: str = "") -> list[str]:
    """Every place in `sent` that `kept` does not have as it was sent; an empty list or object may be anything."""
    if isinstance(sent, dict):
        have = kept if isinstance(kept, dict) else {}
        return [place for key, value in sent.items() for place in lost(value, have.get(key), f"{where}.{key}")]
    if isinstance(sent, list) and sent:
        if not isinstance(kept, list) or len(sent) != len(kept):
            return [where]
        return [
            place for at, pair in enumerate(zip(sent, kept, strict=True)) for place in lost(*pair, f"{where}[{at}]")
        ]
    return [] if sent == kept or sent == [] else [where]


@pytest.mark.parametrize("where", EVERYTHING)
def test_the_server_takes_every_manifest(server: Server, manifests: dict[str, list[Manifest]], where: str) -> None:
    """As `kubectl apply --server-side -k` sends it, and keeps every field: it knows them all."""
    namespace = server.namespace(f"set-{EVERYTHING.index(where)}")
    # A chart's roles for the namespaces of engines are tried with `sharded`.
    own = [
        each for each in manifests[where] if not (each["kind"].startswith("Role") and "namespace" in each["metadata"])
    ]
    for other in sorted({each["metadata"].get("namespace", namespace) for each in own} - {namespace}):
        server.namespace(other)
    kept = apply(server, namespace, own)
    assert len(kept) == len(own)
    for sent, taken in zip(own, kept, strict=True):
        assert lost(as_of(sent, server.version), taken) == []
        assert taken["metadata"]["uid"]


def test_a_field_that_does_not_exist_is_noticed(server: Server, manifests: dict[str, list[Manifest]]) -> None:
    """So that the test above can fail: a server refuses it, or does not keep it."""
    wrong = copy.deepcopy(workload(manifests["base"]))
    wrong["metadata"]["name"] = "wrong"
    wrong["spec"]["template"]["spec"]["containers"][0]["livelinessProbe"] = {"periodSeconds": 1}
    with pytest.raises(AssertionError, match="livelinessProbe"):
        assert lost(wrong, apply(server, server.namespace("wrong"), [wrong])[0]) == []


def test_a_sidecar_without_its_volumes_is_refused(server: Server, manifests: dict[str, list[Manifest]]) -> None:
    """As by an engine's chart that forgot one of the library's templates: the error names the volume."""
    forgotten = copy.deepcopy(one(manifests["overlays/vllm"], "Deployment"))
    pod = forgotten["spec"]["template"]["spec"]
    pod["volumes"] = [each for each in pod["volumes"] if not each["name"].startswith("llm-slo-prober")]
    with pytest.raises(AssertionError, match=r'Not found: "llm-slo-prober-config"'):
        apply(server, server.namespace("forgotten"), [forgotten])


def pods(manifests: dict[str, list[Manifest]]) -> Iterator[tuple[str, Json]]:
    """A pod of each template, as its controller would make it; of a sidecar the prober's own part, as the engine's is not ours."""
    for where, each in manifests.items():
        for manifest in each:
            for spec in pod_specs(manifest):
                pod = copy.deepcopy(spec)
                beside = [*pod.pop("initContainers", ()), *pod["containers"]]
                pod["containers"] = [container for container in beside if of_prober(container)]
                for container in pod["containers"]:
                    container.pop("restartPolicy", None)
                pod.pop("priorityClassName", None)  # whose class would have to be there
                pod.pop("tolerations", None)  # to which the server adds its own
                claims = manifest["spec"].get("volumeClaimTemplates", ())
                pod.setdefault("volumes", []).extend(
                    {
                        "name": one["metadata"]["name"],
                        "persistentVolumeClaim": {"claimName": f"{one['metadata']['name']}-0"},
                    }
                    for one in claims
                )
                yield f"{where}: {manifest['kind']}", {"metadata": {"generateName": "pod-"}, "spec": pod}


def with_accounts(server: Server, namespace: str) -> str:
    """The namespace, with the service accounts that the pods of the manifests name."""
    server.namespace(namespace)
    for name in ("default", "llm-slo-prober", FULLNAME):
        server.made(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
    return f"/api/v1/namespaces/{namespace}/pods"


def unmounted(spec: Json) -> int:
    """How many tokens of its account the server has given a pod; they are taken out of it."""
    given = [each["name"] for each in spec.get("volumes", ()) if "serviceAccountToken" in str(each)]
    spec["volumes"] = [each for each in spec.get("volumes", ()) if each["name"] not in given]
    for container in spec["containers"]:
        mounts = container.get("volumeMounts", ())
        container["volumeMounts"] = [each for each in mounts if each["name"] not in given]
    return len(given)


def test_every_pod_is_let_in_under_restricted(server: Server, manifests: dict[str, list[Manifest]]) -> None:
    """By the server's own admission, and unchanged; with a token just where its manifest asks for one."""
    path = with_accounts(server, "admitted")
    kinds = []
    for where, pod in pods(manifests):
        # An engine's pod has the account of the engine; whether that has a token is its owner's.
        pod["spec"].setdefault("automountServiceAccountToken", False)
        kept = server.made(path, pod)["spec"]
        assert unmounted(kept) == int(pod["spec"]["automountServiceAccountToken"]), where
        assert lost(pod["spec"], kept) == [], where
        for sent, admitted in zip(pod["spec"]["containers"], kept["containers"], strict=True):
            assert sent["securityContext"] == admitted["securityContext"], where
        kinds.append(where.rpartition(" ")[2])
    assert sorted(set(kinds)) == ["AnalysisTemplate", "Deployment", "Job", "StatefulSet"]


def test_a_pod_that_is_not_restricted_is_kept_out(server: Server, manifests: dict[str, list[Manifest]]) -> None:
    """The test above can fail."""
    path = with_accounts(server, "refused")
    _, pod = next(pods({"base": manifests["base"]}))
    pod["spec"]["containers"][0]["securityContext"]["privileged"] = True
    status, said = server.ask("POST", path, pod)
    assert status == 403, said
    assert "restricted" in said["message"].lower() or "security" in said["message"].lower()


def test_a_quota_on_cpu_limits_lets_the_chart_in_with_its_values(
    server: Server, manifests: dict[str, list[Manifest]]
) -> None:
    """With values-autopilot.yaml the prober's pod and that of `helm test`; without it the server says what is missing."""
    path = with_accounts(server, "quota")
    hard = {"limits.cpu": "1", "limits.memory": "2Gi"}
    quotas = "/api/v1/namespaces/quota/resourcequotas"
    quota = server.made(quotas, {"metadata": {"name": "limits"}, "spec": {"hard": hard}})
    status = {"hard": hard, "used": dict.fromkeys(hard, "0")}  # of the controller, which does not run here
    assert server.ask("PUT", f"{quotas}/limits/status", quota | {"status": status})[0] == 200
    _, without_limit = next(pods({"chart": manifests["chart"]}))
    until(lambda: server.ask("POST", path, without_limit)[0] == 403, "the quota to be in effect")
    _, said = server.ask("POST", path, without_limit)
    assert "must specify limits.cpu" in said["message"]
    admitted = [server.made(path, pod) for _, pod in pods({"chart": manifests["chart, autopilot"]})]
    assert len(admitted) == 2


READ = [("", "pods"), ("discovery.k8s.io", "endpointslices")]
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
OTHERS = [
    *(
        ("", each)
        for each in ("pods/exec", "pods/log", "secrets", "configmaps", "services", "nodes", "serviceaccounts/token")
    ),
    *(("apps", each) for each in ("deployments", "statefulsets")),
    ("rbac.authorization.k8s.io", "rolebindings"),
]


def test_the_account_may_do_what_it_does_and_nothing_else(sharded: Server) -> None:
    """Every verb of every kind near it, in its own namespace, in those that it looks into, and elsewhere."""
    elsewhere = sharded.namespace("elsewhere")
    shards = chart(**SHARDED)
    container = workload(shards)["spec"]["template"]["spec"]["containers"][0]
    leases = [f"{flag(container, 'lease.name')}-{shard}" for shard in range(SHARDED["replicas"])]
    asked = {
        (namespace, verb, group, resource, name)
        for namespace in (NAMESPACE, "research", elsewhere)
        for verb in VERBS
        for group, resource in [*READ, *OTHERS, ("coordination.k8s.io", "leases")]
        for name in (
            "",
            *(leases if resource == "leases" else ()),
            *([f"{FULLNAME}-4", "other"] if resource == "leases" else ()),
        )
    }
    allowed = {each for each in asked if sharded.may(ACCOUNT, *each)}
    wanted = {
        *(
            (namespace, verb, *read, "")
            for namespace in (NAMESPACE, "research")
            for verb in ("list", "watch")
            for read in READ
        ),
        *((NAMESPACE, verb, "coordination.k8s.io", "leases", name) for verb in ("get", "update") for name in leases),
        *(
            (NAMESPACE, "create", "coordination.k8s.io", "leases", name)
            for name in ("", *leases, f"{FULLNAME}-4", "other")
        ),
    }
    assert allowed == wanted


@pytest.fixture
def token(sharded: Server, tmp_path: Path) -> str:
    """File with a token of the prober's own account."""
    (tmp_path / "token").write_text(sharded.token(*ACCOUNT))
    return str(tmp_path / "token")


def seen_pod(server: Server, namespace: str, name: str, port: int, **labels: str) -> None:
    """A pod that is ready at this machine's address, as a kubelet would say."""
    container = {"name": "engine", "image": "engine", "ports": [{"containerPort": port}]} | {
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    }
    safe = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    spec = {"containers": [container], "securityContext": safe, "automountServiceAccountToken": False}
    path = f"/api/v1/namespaces/{namespace}/pods"
    if server.ask("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default")[0] == 404:
        server.made(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}})
    server.made(path, {"metadata": {"name": name, "labels": labels}, "spec": spec})
    status: Json = {
        "phase": "Running",
        "podIP": "127.0.0.1",
        "podIPs": [{"ip": "127.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    assert server.ask("PATCH", f"{path}/{name}/status", {"status": status}, kind=PATCH)[0] == 200


def gone(server: Server, namespace: str, name: str) -> None:
    """As a kubelet that has ended the pod says."""
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    assert server.ask("DELETE", path, {"gracePeriodSeconds": 0})[0] == 200


async def test_pods_are_found_as_they_come_and_go(sharded: Server, token: str) -> None:
    """By the account's own token: a list, then a watch that is taken up again."""
    seen_pod(sharded, NAMESPACE, "first", 8001)
    async with Following(
        discovery("pod", sharded.url, NAMESPACE, "research", token_file=token, ca_file=str(sharded.ca))
    ) as following:
        discovered = following.discovered
        assert not discovered.problems

        def names() -> set[str]:
            return {labels["name"] for _, found in discovered.items() for labels in found if "__address__" in labels}

        assert "llm/first" in names()
        seen_pod(sharded, "research", "second", 8002)
        await following.until(lambda: "research/second" in names())
        gone(sharded, NAMESPACE, "first")
        await following.until(lambda: "llm/first" not in names())
        assert discovered.failures == 0
    gone(sharded, "research", "second")


async def test_endpointslices_are_found(sharded: Server, token: str) -> None:
    """Before 1.21, from a stand-in of their kind."""
    ready = {"addresses": ["192.0.2.1"], "conditions": {"ready": True}}
    body: Json = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "engines"},
        "addressType": "IPv4",
        "endpoints": [ready],
        "ports": [{"name": "http", "port": 8000, "protocol": "TCP"}],
    }
    sharded.made(f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices", body)
    async with Following(
        discovery("endpointslice", sharded.url, NAMESPACE, token_file=token, ca_file=str(sharded.ca))
    ) as following:
        assert not following.discovered.problems
        found = [labels for _, each in following.discovered.items() for labels in each]
        assert [labels["__address__"] for labels in found] == ["192.0.2.1:8000"]


async def test_a_namespace_that_is_not_its_own_is_refused(sharded: Server, token: str) -> None:
    """And said so, with whose leave is missing."""
    async with Following(
        discovery("pod", sharded.url, "default", token_file=token, ca_file=str(sharded.ca))
    ) as following:
        (problem,) = following.discovered.problems
        assert "403" in problem
        assert "system:serviceaccount:llm:prober" in problem


async def test_a_lease_is_made_renewed_and_refused(sharded: Server, token: str) -> None:
    """With the account's own token: an old version is beaten, and a lease that no shard has is not to be had."""
    api = Api(sharded.url, token_file=token, ca_file=str(sharded.ca), namespace=NAMESPACE)
    try:
        record = await leased(api, NAMESPACE, f"{FULLNAME}-3")
        assert (record.holder, record.lease_s, record.transitions) == ("one", 15.0, 1)
        one, other = (KubernetesLease(api, NAMESPACE, f"{FULLNAME}-3") for _ in range(2))
        version = [(await each.read(5.0) or record).version for each in (one, other)]
        await one.write(Write(Record("one", 15.0, 1, version[0]), begins=False), 5.0)
        with pytest.raises(Conflict):
            await other.write(Write(Record("two", 15.0, 2, version[1]), begins=True), 5.0)
        with pytest.raises(KubernetesApiError) as refused:
            await KubernetesLease(api, NAMESPACE, f"{FULLNAME}-4").read(5.0)
        assert refused.value.status == 403
    finally:
        await api.close()


async def test_a_watch_from_long_ago_is_told_to_begin_anew(sharded: Server, tmp_path: Path) -> None:
    """410 within the watch; discovery then lists again. Of a list, by its status."""
    (tmp_path / "admin").write_text(sharded.admin)
    api = Api(sharded.url, token_file=str(tmp_path / "admin"), ca_file=str(sharded.ca))
    path = f"/api/v1/namespaces/{NAMESPACE}/{UNCACHED}"
    began = await api.list(path, lambda _: None)
    for name in ("later", "later-still"):
        sharded.namespace(name)
    sharded.forget()
    try:
        with pytest.raises(KubernetesApiError) as refused:
            async for _ in api.watch(path, version=began, watch_s=5.0):
                pass
        assert refused.value.gone
        with pytest.raises(KubernetesApiError) as refused:
            await api.get(path, {"resourceVersion": began, "resourceVersionMatch": "Exact"})
        assert refused.value.gone
    finally:
        await api.close()


CONFIG = """
discovery:
  - kubernetes:
      api_server: {server.url}
      auth: {{bearer_token_file: {token}}}
      ca_file: {server.ca}
      namespaces: [llm]
      label_selector: llm-slo-prober/target=true
    hosts: [127.0.0.0/8]
    target: {{model: mock-model, rate: 5/s}}
"""


def test_probers_follow_the_cluster_and_one_of_them_leads(sharded: Server, token: str, tmp_path: Path) -> None:
    """Two replicas of one shard: an engine's pod is probed while it is there; one holds the lease, and when it is killed the other."""
    flags = (
        "--shard=0/1",
        f"--lease.name={FULLNAME}",
        f"--lease.namespace={NAMESPACE}",
        f"--lease.api-server={sharded.url}",
        f"--lease.token-file={token}",
        f"--lease.ca-file={sharded.ca}",
        "--lease.duration=3s",
    )
    folders = [tmp_path / name for name in ("a", "b")]
    for folder in folders:
        folder.mkdir()
    config = CONFIG.format(server=sharded, token=token)
    with (
        Mock(tmp_path / "mock") as engine,
        Daemon(folders[0], config, *flags) as first,
        Daemon(folders[1], config, *flags) as second,
    ):
        both = (first, second)
        seen_pod(sharded, NAMESPACE, "engine", engine.port, **{"llm-slo-prober/target": "true"})
        for each in both:
            until(lambda each=each: each.value("llmslo_probes_total", target="llm/engine") > 3, "probes of the pod")  # type: ignore[misc]
        until(lambda: sum(each.value("llmslo_lease_held") for each in both) == 1, "a holder")
        leader, follower = sorted(both, key=lambda each: -each.value("llmslo_lease_held"))
        taken = leader.value("llmslo_lease_transitions_total")
        leader.kill()
        until(lambda: follower.value("llmslo_lease_held") == 1, "the other to follow", 20)
        assert follower.value("llmslo_lease_transitions_total") == taken + 1
        gone(sharded, NAMESPACE, "engine")
        until(lambda: 'target="llm/engine"' not in get(follower.url + "/metrics"), "its series to go")
