"""The sidecar and the fleet on a cluster with nodes: `make test-node`. Each scene counts bad events and flaps of endpoints.

An own node (NODE_DIR) allows faults that no API offers: signals from outside a container, and an API server that does not answer.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import newer
from tests.deploy.rendering import FULLNAME
from tests.node.cluster import Cluster, Endpoints
from tests.node.fleet import ENGINES, FLEET, PROBER, TOKEN_S, Fleet, sweeping
from tests.node.monitoring import Prometheus
from tests.node.release import Release, resolving
from tests.node.scene import BROKEN, CONFIG, CONTAINER, Scene, mock_engine, rendered
from tests.processes import until

Json = dict[str, Any]
FOLLOWS_S = 180  # the kubelet brings a changed ConfigMap into its pods within two minutes
DISCOVERED_S = 10  # a watch is begun again after 5 s at most; the rest is for asking three pages on a busy machine
SAVED_S = 65  # the prober writes its state once a minute
RELEASE = "app.kubernetes.io/instance=prober"
OWN = "needs a node of its own: the fault is made from outside the container"


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture(scope="session")
def prometheus(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Prometheus 3: Debian's older one has no discovery by Kubernetes."""
    with Prometheus(cluster, tmp_path_factory.mktemp("prometheus"), newer("prometheus")) as running:
        yield running


@pytest.fixture
def scene(cluster: Cluster, prometheus: Prometheus, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A namespace named after the test."""
    name = re.sub(r"[^a-z]+", "-", request.node.name.removeprefix("test_")).strip("-")
    with Scene(cluster, prometheus, tmp_path, name) as made:
        yield made


@pytest.fixture(scope="module")
def fleet(cluster: Cluster, prometheus: Prometheus, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Started once. The scenes of the fleet come first, so that its token is renewed during those of the sidecar."""
    with Fleet(cluster, prometheus, tmp_path_factory.mktemp("fleet")) as made:
        made.start()
        yield made


@pytest.fixture(scope="session")
def pages() -> dict[str, set[str]]:
    """Alerts that must have paged, by target."""
    return {}


@pytest.fixture
def own(cluster: Cluster) -> None:
    if cluster.own is None:
        pytest.skip(OWN)


def total(fleet: Fleet, name: str, **labels: str) -> float:
    """Over the pages of all shards."""
    return sum(fleet.value(name, pod, **labels) for pod in fleet.probers())


def test_fleet_starts(fleet: Fleet) -> None:
    """Each engine has one shard, each shard its lease, and no event is bad."""
    since = time.time()
    until(lambda: total(fleet, "llmslo_lease_held") == 3, "three leases", 120)
    until(lambda: fleet.events(since) >= 3 * 20 * ENGINES, "20 probes of each engine", 120)
    assert fleet.bad() == 0
    assert total(fleet, "llmslo_discovery_targets") == 3 * ENGINES
    for asked in ("services/https:llm-slo-prober:http", "pods/https:llm-slo-prober-0:9742"):
        path = f"/api/v1/namespaces/{fleet.namespace}/{asked}/proxy/-/ready"
        assert fleet.cluster.kubectl("get", "--raw", path) == "Ready\n", "as docs/kubernetes.md says"


def test_fleet_rollout_and_scale(fleet: Fleet) -> None:
    """Engines are replaced, added and removed: what ends on purpose is no failure."""
    since = time.time()
    with Endpoints(fleet.cluster, fleet.namespace, "llm-slo-prober") as endpoints:
        fleet.restart("engine")
        until(lambda: total(fleet, "llmslo_target_state", state="ready") == ENGINES, "the new engines", 120)
        fleet.scale(ENGINES - 2)
        until(lambda: total(fleet, "llmslo_discovery_targets") == 3 * (ENGINES - 2), "fewer targets", 120)
        time.sleep(35)
        fleet.scale(ENGINES)
        until(lambda: total(fleet, "llmslo_target_state", state="ready") == ENGINES, "all engines again", 120)
        assert fleet.events(since) >= 100
        assert (fleet.bad(since), endpoints.flaps) == (0, 0)


def test_fleet_follows_its_certificate(fleet: Fleet) -> None:
    """A new certificate is served without a restart, and Prometheus verifies it by the new authority."""
    with Endpoints(fleet.cluster, fleet.namespace, "llm-slo-prober") as endpoints:
        since = time.time()
        renewed = fleet.new_certificate()
        up = f'up{{job="exact",namespace="{fleet.namespace}"}}'
        until(
            lambda: all(each["value"][1] == "0" for each in fleet.prometheus.query(up)),
            "the old certificate refused",
            30,
        )
        fleet.cluster.apply([renewed], fleet.namespace)
        fleet.prometheus.reload()
        until(
            lambda: all(each["value"][1] == "1" for each in fleet.prometheus.query(up)),
            "the new certificate",
            FOLLOWS_S,
        )
        assert (fleet.bad(since), endpoints.flaps) == (0, 0)
    assert fleet.restarts() == 0


@pytest.mark.usefixtures("own")
def test_fleet_without_an_api_server(fleet: Fleet) -> None:
    """For 45 s nothing answers: no event is bad, then leases come back, and discovery sees an engine within seconds.

    That engine runs all the time and only gets its label, so that no start of a pod is timed. Flaps are not asserted: after 40 s
    without a heartbeat Kubernetes itself takes the pods of the node out of all endpoints.
    """
    fleet.cluster.apply([mock_engine("spare")], fleet.namespace)
    fleet.kubectl("rollout", "status", "deployment/spare", "--timeout=120s")
    since = time.time()
    fleet.cluster.signal_api_server("STOP")
    try:
        time.sleep(45)
    finally:
        fleet.cluster.signal_api_server("CONT")
    back = time.monotonic()
    fleet.kubectl("label", "pod", "--selector=app=spare", "llm-slo-prober/target=true")
    until(lambda: total(fleet, "llmslo_discovery_targets") == 3 * (ENGINES + 1), "discovery of an engine", 120)
    discovered_s = time.monotonic() - back
    until(lambda: total(fleet, "llmslo_lease_held") == 3, "three leases", 120)
    print(
        f"after the API server was back: an engine in {discovered_s:.1f} s, leases in {time.monotonic() - back:.1f} s"
    )
    assert discovered_s < DISCOVERED_S
    fleet.kubectl("delete", "deployment", "spare")
    until(lambda: total(fleet, "llmslo_discovery_targets") == 3 * ENGINES, "the engines of before", 120)
    until(lambda: total(fleet, "llmslo_target_state", state="ready") == ENGINES, "probes of all of them", 120)
    assert fleet.events(since) >= 3 * 40 * ENGINES
    assert fleet.bad(since) == 0
    assert fleet.restarts() == 0


def test_fleet_repeats_no_sweep_of_a_lost_holder(fleet: Fleet) -> None:
    """A shard is deleted by force in a sweep, while another one waits: both are due again at their next time; no event is bad."""
    since = time.time()
    fleet.configure(sweeping(since + 120))
    try:
        until(lambda: total(fleet, "llmslo_sweep_rate_per_second") > 0, "a sweep", FOLLOWS_S)
        busy = max(fleet.probers(), key=lambda pod: fleet.targets(pod))
        assert fleet.targets(busy) >= 2
        until(
            lambda: fleet.value("llmslo_sweep_rate_per_second", busy) > 0, "a sweep of the shard with several targets"
        )
        (lease,) = (f"llm-slo-prober-{busy.rpartition('-')[2]}",)
        before = fleet.cluster.get("lease", lease, "--namespace", fleet.namespace)["spec"]["leaseTransitions"]
        with Endpoints(fleet.cluster, fleet.namespace, "llm-slo-prober") as endpoints:
            fleet.kubectl("delete", "pod", busy, "--force", "--grace-period=0")
            until(lambda: fleet.value("llmslo_lease_held", busy) == 1, "the lease held again", 120)
            until(lambda: busy in endpoints.ready, "its endpoint", 60)
            assert endpoints.flaps == 1, "its own"
        after = fleet.cluster.get("lease", lease, "--namespace", fleet.namespace)["spec"]["leaseTransitions"]
        assert after == before + 1
        time.sleep(65)
        assert fleet.value("llmslo_sweeps_total", busy) == 0, "neither the cut one nor those that waited"
        assert fleet.bad(since) == 0
    finally:
        fleet.configure(FLEET)


def test_start(scene: Scene) -> None:
    """Engine and sidecar start: the endpoint becomes ready once, the target has the workload's name, and no event is bad."""
    scene.deploy()
    with scene.endpoints() as endpoints:
        scene.until_probed()
        labels = {"target": f"{scene.namespace}/llama", "state": "ready"}
        assert scene.value("llmslo_target_state", **labels) == 1
        assert scene.events() >= 20
        assert (scene.bad(), endpoints.flaps) == (0, 0)
    assert scene.restarts(CONTAINER) == scene.restarts("engine") == 0
    listed = "import os; print(os.listdir('/var/run/secrets/kubernetes.io/serviceaccount'))"
    for container, has_token in ((CONTAINER, False), ("engine", True)):
        files = scene.kubectl("exec", scene.pod(), f"--container={container}", "--", "python", "-c", listed)
        assert ("'token'" in files) is has_token, f"{container}: {files}"


def test_loading(scene: Scene) -> None:
    """An engine that refuses connections for three minutes is `starting`, uncounted, and then `ready`."""
    scene.deploy(loads_s=180)
    until(lambda: scene.value("llmslo_target_state", state="starting") == 1, "the state starting", 120)
    until(lambda: scene.value("llmslo_target_state", state="ready") == 1, "the state ready", 300)
    with scene.endpoints() as endpoints:
        scene.until_probed()
        assert (scene.bad(), endpoints.flaps) == (0, 0)
    assert scene.value("llmslo_probe_failures_total") == 0


def test_configuration_broken_and_mended(scene: Scene) -> None:
    """A mistake changes nothing but the alarm about it; the mended file is taken over without a restart."""
    scene.deploy()
    with scene.endpoints() as endpoints:
        scene.until_probed()
        scene.configure(BROKEN)
        until(lambda: scene.value("llmslo_config_last_reload_successful") == 0, "the broken file", FOLLOWS_S)
        scene.until_probed()
        scene.configure(CONFIG.replace("tiny", "small"))
        until(lambda: scene.value("llmslo_config_last_reload_successful") == 1, "the mended file", FOLLOWS_S)
        until(lambda: scene.value("llmslo_ttft_seconds_count", workload="small") > 5, "probes of the new workload")
        assert (scene.bad(), endpoints.flaps) == (0, 0)
    assert scene.restarts(CONTAINER) == scene.restarts("engine") == 0


def test_started_with_a_broken_configuration(scene: Scene) -> None:
    """The engine is in service although its sidecar has nothing to do, and is probed once the file is mended."""
    scene.deploy(config=BROKEN)
    with scene.endpoints() as endpoints:
        until(lambda: scene.value("llmslo_config_last_reload_successful") == 0, "the page")
        scene.configure(CONFIG)
        until(lambda: scene.value("llmslo_config_last_reload_successful") == 1, "the file", FOLLOWS_S)
        scene.until_probed()
        assert (scene.bad(), endpoints.flaps) == (0, 0)
    assert scene.restarts(CONTAINER) == 0


@pytest.mark.usefixtures("own")
def test_a_missing_configuration(scene: Scene) -> None:
    """Kubernetes says which ConfigMap a new pod waits for; a running one loses nothing by its deletion, nor by a restart after it."""

    def said() -> bool:
        return 'configmap "llama-prober" not found' in scene.kubectl("get", "events", "--output=jsonpath={..message}")

    scene.deploy(config="")
    until(said, "the event of the waiting pod", 120)
    path = scene.folder / "prober.yaml"
    path.write_text(CONFIG)
    scene.kubectl("create", "configmap", "llama-prober", f"--from-file={path}")
    with scene.endpoints() as endpoints:
        scene.until_probed()
        scene.kubectl("delete", "configmap", "llama-prober")
        scene.kubectl("delete", "events", "--all")
        until(said, "the event of the running pod", FOLLOWS_S)
        scene.until_probed()
        assert (scene.bad(), endpoints.flaps) == (0, 0)
        scene.cluster.signal(scene.namespace, scene.pod(), CONTAINER, "KILL")
        until(lambda: scene.restarts(CONTAINER) == 1, "the restart")
        scene.until_probed()
        assert scene.bad() == 0
    assert scene.restarts("engine") == 0


def test_two_engines_of_one_namespace(scene: Scene) -> None:
    """Each has a configuration of its own; deleting one leaves the other as it was, without a bad event."""
    scene.deploy()
    scene.deploy("qwen", config=CONFIG.replace("tiny", "small"))
    with scene.endpoints() as endpoints:
        scene.until_probed(pod=scene.pod("llama"))
        scene.until_probed(pod=scene.pod("qwen"))
        workloads = {
            app: scene.value("llmslo_probes_total", pod=scene.pod(app), workload="small") for app in ("llama", "qwen")
        }
        assert workloads["llama"] == 0 < workloads["qwen"]
        scene.remove("qwen")
        until(lambda: not scene.pods("qwen"), "the pods of the other", 120)
        scene.restart("llama")
        scene.until_probed(pod=scene.pod("llama"))
        assert (scene.bad(), endpoints.flaps) == (0, 0)


@pytest.mark.usefixtures("own")
def test_a_stopped_sidecar(scene: Scene) -> None:
    """Half a minute of SIGSTOP costs no event and no endpoint; its own delay is not the engine's."""
    scene.deploy()
    with scene.endpoints() as endpoints:
        scene.until_probed()
        scene.cluster.signal(scene.namespace, scene.pod(), CONTAINER, "STOP")
        time.sleep(30)
        scene.cluster.signal(scene.namespace, scene.pod(), CONTAINER, "CONT")
        scene.until_probed()
        assert (scene.bad(), endpoints.flaps) == (0, 0)
    assert scene.restarts(CONTAINER) == 0


@pytest.mark.usefixtures("own")
def test_a_killed_sidecar(scene: Scene) -> None:
    """It costs one short absence of the endpoint, no event, and the engine goes on."""
    scene.deploy()
    with scene.endpoints() as endpoints:
        scene.until_probed()
        scene.cluster.signal(scene.namespace, scene.pod(), CONTAINER, "KILL")
        until(lambda: scene.restarts(CONTAINER) == 1, "the restart")
        scene.until_probed()
        assert scene.bad() == 0
        assert endpoints.flaps <= 2, "it left, nobody was left, and it came back"
    assert scene.restarts("engine") == 0


@pytest.mark.usefixtures("own")
def test_storage_that_can_be_used_again(scene: Scene) -> None:
    """A sidecar that begins where it cannot write goes on, and takes its storage later: no restart, no flap, no bad event."""
    scene.deploy()
    with scene.endpoints():
        scene.until_probed()
        scene.cluster.allow_writes(scene.namespace, scene.pod(), "llm-slo-prober-storage", allowed=False)
        scene.cluster.signal(scene.namespace, scene.pod(), CONTAINER, "KILL")
        until(lambda: scene.restarts(CONTAINER) == 1, "the restart", 120)
        until(lambda: scene.value("llmslo_config_last_reload_successful") == 0, "the page without storage", 120)
    with scene.endpoints() as endpoints:
        scene.until_probed()
        scene.cluster.allow_writes(scene.namespace, scene.pod(), "llm-slo-prober-storage", allowed=True)
        until(lambda: scene.value("llmslo_config_last_reload_successful") == 1, "the storage", 120)
        scene.until_probed()
        assert (scene.bad(), endpoints.flaps) == (0, 0)
    assert scene.restarts(CONTAINER) == 1
    assert scene.restarts("engine") == 0


def test_memory_at_the_limit(scene: Scene) -> None:
    """A process beside the prober fills the container's memory: the kernel ends that one, at most the sidecar, never the engine."""
    scene.deploy()
    with scene.endpoints() as endpoints:
        scene.until_probed()
        greedy = "print(len(bytearray(b'x') * (400 << 20)))"
        with pytest.raises(RuntimeError, match=r"137|OOM|Killed"):
            scene.kubectl("exec", scene.pod(), f"--container={CONTAINER}", "--", "python", "-c", greedy)
        scene.until_probed()
        assert scene.bad() == 0
        assert endpoints.flaps <= 2 * scene.restarts(CONTAINER)
    assert scene.restarts("engine") == 0


def test_rollout(scene: Scene) -> None:
    """Three engines are replaced by three: what ends on purpose is no failure."""
    scene.deploy(replicas=3)
    with scene.endpoints(ready=3) as endpoints:
        scene.until_probed()
        scene.restart()
        scene.until_probed()
        time.sleep(30)  # the last of the old ones ends
        assert scene.events() >= 100
        assert (scene.bad(), endpoints.flaps) == (0, 0)


def test_scale(scene: Scene) -> None:
    """From one to three to none: no event is bad, and nobody is left once, as asked."""
    scene.deploy()
    with scene.endpoints() as endpoints:
        scene.until_probed()
        scene.kubectl("scale", "deployment/llama", "--replicas=3")
        until(lambda: len(endpoints.ready) == 3, "three endpoints", 120)
        scene.until_probed(pod=str(scene.pods()[-1]["metadata"]["name"]))
        scene.kubectl("scale", "deployment/llama", "--replicas=0")
        until(lambda: not endpoints.ready, "no endpoint")
        time.sleep(35)
        assert scene.events() >= 60
        assert (scene.bad(), endpoints.flaps) == (0, 1)


def test_drain(scene: Scene) -> None:
    """`kubectl drain` moves the pod without a bad event."""
    scene.deploy("drained")
    node = scene.pods("drained")[0]["spec"]["nodeName"]
    with scene.endpoints("drained") as endpoints:
        scene.until_probed(pod=scene.pod("drained"))
        try:
            scene.cluster.kubectl(
                "drain",
                node,
                "--ignore-daemonsets",
                "--delete-emptydir-data",
                "--pod-selector=app=drained",
                "--timeout=120s",
            )
        finally:
            scene.cluster.kubectl("uncordon", node)
        until(lambda: len(endpoints.ready) == 1, "the endpoint of the new pod", 120)
        scene.until_probed(pod=scene.pod("drained"))
        assert scene.events() >= 40
        assert (scene.bad(), endpoints.flaps) == (0, 1)


# Runs before the prober, on its volume: a sweep, kept as the result of each of 90 days.
SEED = """
import dataclasses, subprocess, sys, time
from prober.features.capacity.sweep_store import SweepArchive
from prober.results.result_file import from_json
from prober.storage.store import Store
prober = [sys.executable, "-m", "prober"]
engine = subprocess.Popen([*prober, "mock", "--port=8001"])
time.sleep(5)
options = ["--rates=5,10", "--step=5s", "--warm-up=0",
    "--slo=ttft<5s:90%", "--output=/tmp/sweep.json"]
subprocess.run([*prober, "sweep", "http://127.0.0.1:8001", *options])
engine.kill()
sweep, now = from_json(open("/tmp/sweep.json").read(), "sweep.json"), time.time()
store = Store("/var/lib/prober")
for day in range(90, 0, -1):
    at = now - day * 86400
    result = dataclasses.replace(sweep, id=f"day-{day}", started_unix_s=at, ended_unix_s=at + 60)
    SweepArchive(store, lambda: at).save("llama", result.without_requests())
store.close()
"""


def test_ninety_days_of_sweeps(scene: Scene) -> None:
    """A prober whose volume has seen 90 daily sweeps starts within its memory, with the latest 20 results."""
    scene.cluster.apply([mock_engine("llama")], scene.namespace)
    until(lambda: scene.pods()[0]["status"].get("podIP"), "the engine's address")
    address = scene.pods()[0]["status"]["podIP"]
    path = "/spec/template/spec"
    seed = {
        "name": "seed",
        "image": "llm-slo-prober",
        "command": ["python", "-c", SEED],
        "volumeMounts": [{"name": "storage", "mountPath": "/var/lib/prober"}, {"name": "tmp", "mountPath": "/tmp"}],
    }
    patches = [{"op": "add", "path": f"{path}/initContainers", "value": [seed]}]
    manifests = rendered(
        scene.folder / "stored",
        {
            "namespace": scene.namespace,
            "resources": ["…/base"],
            "components": ["…/components/persistent", "…/components/prometheus-operator/servicemonitor"],
            "configMapGenerator": [{"name": "llm-slo-prober", "behavior": "replace", "files": ["prober.yaml"]}],
            "patches": [{"target": {"kind": "Deployment"}, "patch": json.dumps(patches)}],
        },
        prober=CONFIG.replace("{url:", "{name: llama, sweep: {workload: tiny}, url:").replace("127.0.0.1", address),
    )
    scene.volumes(1)
    scene.cluster.apply(manifests, scene.namespace)
    monitor = next(each for each in manifests if each["kind"] == "ServiceMonitor")
    scene.prometheus.job(scene.namespace, monitor, "http")
    until(lambda: scene.cluster.pods(scene.namespace, PROBER), "the prober")
    (prober,) = (str(pod["metadata"]["name"]) for pod in scene.cluster.pods(scene.namespace, PROBER))
    scene.until_probed(pod=prober, seconds=300)
    with Endpoints(scene.cluster, scene.namespace, "llm-slo-prober") as endpoints:
        until(lambda: prober in endpoints.ready, "its endpoint", 60)
        scene.until_probed(pod=prober)
        assert endpoints.flaps == 0
    kept = json.loads(scene.page(prober, "/api/v1/sweeps?target=llama"))["data"]
    assert {sweep["id"] for sweep in kept} == {f"day-{day}" for day in range(1, 21)}
    assert scene.value("process_resident_memory_bytes", prober) < 200e6
    assert scene.events() >= 20
    assert scene.bad() == 0


def test_the_chart_and_its_test(scene: Scene) -> None:
    """Installed by Helm, its test tells the target's state; without the prober it fails; uninstalled it leaves that test's Job, and
    nothing once the Job's time is over.
    """
    scene.cluster.apply([mock_engine("llama")], scene.namespace)
    until(lambda: scene.pods()[0]["status"].get("podIP"), "the engine's address")
    config = yaml.safe_load(CONFIG)
    config["targets"][0] |= {"name": "llama", "url": f"http://{scene.pods()[0]['status']['podIP']}:8000"}
    repository, _, tag = os.environ["NODE_IMAGE"].rpartition(":")
    release = Release(scene.cluster, scene.namespace, scene.folder)
    release.install({"image": {"repository": repository, "tag": tag}, "config": config})
    (prober,) = scene.cluster.pods(scene.namespace, PROBER)
    scene.until_probed(pod=prober["metadata"]["name"])
    known = scene.folder / "names.json"
    known.write_text(json.dumps({f"{FULLNAME}.{scene.namespace}.svc": prober["status"]["podIP"]}))
    with resolving(scene.cluster, known):
        told = release.test()
        assert "Phase:          Succeeded" in told
        assert f"http://{FULLNAME}.{scene.namespace}.svc:9742: ready\nllama: ready\n" in told
        scene.kubectl("scale", f"deployment/{FULLNAME}", "--replicas=0")
        until(lambda: not scene.cluster.pods(scene.namespace, PROBER), "the prober's end")
        with pytest.raises(RuntimeError, match=r"-test failed|BackoffLimitExceeded|DeadlineExceeded"):
            release.test()
    assert {f"{kind}/{FULLNAME}" for kind in ("service", "configmap", "deployment.apps")} <= set(
        scene.cluster.labelled(RELEASE)
    )
    release.uninstall()
    until(
        lambda: {name.partition("/")[0] for name in scene.cluster.labelled(RELEASE)} <= {"job.batch", "pod"},
        "the end",
        120,
    )
    scene.kubectl("patch", "job", f"{FULLNAME}-test", '--patch={"spec": {"ttlSecondsAfterFinished": 1}}')
    until(lambda: not scene.cluster.labelled(RELEASE), "the end of the Job", 120)
    assert not scene.cluster.labelled("owner=helm"), "Helm's own record"


@pytest.mark.usefixtures("own")
def test_a_killed_engine_counts(scene: Scene, pages: dict[str, set[str]]) -> None:
    """The neighbour of all scenes above: a crash of the engine is an outage, and its probes are bad events."""
    scene.deploy()
    with scene.endpoints():
        scene.until_probed()
        scene.cluster.signal(scene.namespace, scene.pod(), "engine", "KILL")
        until(lambda: scene.restarts("engine") == 1, "the restart")
        until(lambda: scene.value("llmslo_target_state", state="ready") == 1, "the state ready", 120)
        scene.until_probed()
        assert scene.bad() >= 1
    pages[f"{scene.namespace}/llama"] = set()  # it may page: it has failed a large share of its few probes
    assert scene.restarts(CONTAINER) == 0


@pytest.mark.usefixtures("own")
def test_a_sidecar_restarted_beside_a_dead_engine(scene: Scene, pages: dict[str, set[str]]) -> None:
    """Killed together with an engine that needs minutes to load, it does not take the outage for a start: the engine had answered."""
    scene.deploy(loads_s=90)
    with scene.endpoints():
        scene.until_probed()
        time.sleep(SAVED_S)
        scene.cluster.signal(scene.namespace, scene.pod(), "engine", "KILL")
        scene.cluster.signal(scene.namespace, scene.pod(), CONTAINER, "KILL")
        until(lambda: scene.restarts(CONTAINER) == scene.restarts("engine") == 1, "both restarts", 120)
        until(lambda: scene.value("llmslo_target_state", state="failing") == 1, "the state failing", 60)
        assert scene.value("llmslo_target_state", state="starting") == 0
        assert scene.bad() >= 1
    pages[f"{scene.namespace}/llama"] = set()


def test_fleet_follows_its_token(fleet: Fleet) -> None:
    """Its first token has expired: leases and discovery go on with the renewed one."""
    time.sleep(max(0.0, fleet.since + TOKEN_S + 60 - time.time()))
    since = time.time()
    failures = total(fleet, "llmslo_lease_failures_total") + total(fleet, "llmslo_discovery_failures_total")
    with Endpoints(fleet.cluster, fleet.namespace, "llm-slo-prober") as endpoints:
        fleet.scale(ENGINES + 1)
        until(lambda: total(fleet, "llmslo_discovery_targets") == 3 * (ENGINES + 1), "the new engine", 120)
        time.sleep(70)  # a watch ends after a minute, and the next one needs the token again
        assert total(fleet, "llmslo_lease_held") == 3
        assert total(fleet, "llmslo_lease_failures_total") + total(fleet, "llmslo_discovery_failures_total") == failures
        assert fleet.events(since) >= 100
        assert (fleet.bad(since), endpoints.flaps) == (0, 0)


@pytest.mark.usefixtures("own")
def test_a_hanging_engine_pages(scene: Scene, pages: dict[str, set[str]]) -> None:
    """An engine that is stopped fails: `LLMTargetFailing` fires for it. With the crash above all that pages in the whole run."""
    scene.deploy()
    scene.until_probed()
    scene.cluster.signal(scene.namespace, scene.pod(), "engine", "STOP")
    firing = f'ALERTS{{alertname="LLMTargetFailing",alertstate="firing",target="{scene.namespace}/llama"}}'
    until(lambda: scene.prometheus.query(firing), "the page", 420)
    pages[f"{scene.namespace}/llama"] = {"LLMTargetFailing"}


def test_nothing_else_paged(prometheus: Prometheus, pages: dict[str, set[str]]) -> None:
    """Of all critical alerts of the whole run only those that a fault of an engine must raise."""
    fired: dict[str, set[str]] = {}
    for found in prometheus.query('max_over_time(ALERTS{alertstate="firing",severity="critical"}[6h])'):
        labels = found["metric"]
        fired.setdefault(labels.get("target", labels.get("instance", "")), set()).add(labels["alertname"])
    allowed = {"LLMTargetFailing", "LLMErrorBudgetBurn"}
    assert {target: names for target, names in fired.items() if target not in pages} == {}
    for target, names in pages.items():
        assert names <= fired.get(target, set()) <= allowed
