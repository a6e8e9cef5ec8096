"""The library chart puts the same sidecar beside an engine as kustomize does, by an engine's chart that includes it."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.conftest import absent
from tests.deploy.hardening import beside, containers, faults
from tests.deploy.rendering import HELM_3, HELM_4, KUSTOMIZE, ROOT, Manifest, Refused, helm
from tests.deploy.shipped import configuration, one, workload

LIBRARY, EXAMPLE = "sidecar-chart", "sidecar-chart-example"
KEY = "llm-slo-prober-sidecar"
NATIVE = "--kube-version=1.29"
"""Helm 3.10 renders for a Kubernetes of its own time, before native sidecars; Helm 4 for one of now."""


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example chart, whose dependency Helm has put together."""
    if not HELM_3.exists():
        absent(f"no {HELM_3}: `make tools` fetches it where npm is")
    folder = tmp_path_factory.mktemp("charts")
    for name in (LIBRARY, EXAMPLE):
        shutil.copytree(ROOT / "deploy" / name, folder / name)
    homes = {f"HELM_{name}_HOME": str(folder / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
    words = [str(HELM_3), "dependency", "build", str(folder / EXAMPLE)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ | homes)
    assert done.returncode == 0, done.stderr
    return folder / EXAMPLE


def rendered(example: Path, **over: Any) -> list[Manifest]:
    """The manifests of the example, with other values for the library."""
    return helm(HELM_3, "llama", {KEY: over}, NATIVE, folder=example)


def test_both_releases_of_helm_make_the_same(example: Path) -> None:
    """Of the example as it is shipped."""
    by_3, by_4 = (helm(program, "llama", {}, NATIVE, folder=example) for program in (HELM_3, HELM_4))
    assert sorted(map(json.dumps, by_3)) == sorted(map(json.dumps, by_4))


def test_the_sidecar_is_that_of_kustomize(example: Path) -> None:
    """Its container, volumes, label and annotation, but for the names of the image and of the ConfigMap."""
    component = yaml.safe_load((KUSTOMIZE / "components/sidecar/container.yaml").read_text())["spec"]["template"]
    manifests = rendered(example)
    pod = workload(manifests)["spec"]["template"]
    (sidecar,), (expected,) = pod["spec"]["initContainers"], component["spec"]["initContainers"]
    assert sidecar.pop("image").startswith("registry.example/llm-slo-prober:")
    expected.pop("image")
    assert sidecar == expected
    config = pod["spec"]["volumes"][0]["configMap"]
    assert config["name"] == one(manifests, "ConfigMap")["metadata"]["name"]
    config["name"] = component["spec"]["volumes"][0]["configMap"]["name"]
    assert pod["spec"]["volumes"] == component["spec"]["volumes"]
    assert component["metadata"]["labels"].items() <= pod["metadata"]["labels"].items()
    assert component["metadata"]["annotations"] == pod["metadata"]["annotations"]


def test_it_is_hardened_and_valid(example: Path) -> None:
    """By the same settings as every container; Kubernetes knows every field."""
    manifests = rendered(example)
    ((pod, sidecar),) = containers(workload(manifests))
    assert beside(sidecar)
    assert faults(pod, sidecar) == []
    for manifest in manifests:
        kubernetes_validate.validate(manifest, "1.29", strict=True)


def test_values_of_the_engine_s_chart_reach_the_sidecar(example: Path) -> None:
    """Limits of CPU too."""
    config = {"targets": [{"url": "http://localhost:9000"}]}
    limits = {"resources": {"limits": {"cpu": "100m"}}}
    manifests = rendered(
        example, config=config, image={"digest": "sha256:" + "0" * 64}, workloadLabel="team.example/name", **limits
    )
    (sidecar,) = workload(manifests)["spec"]["template"]["spec"]["initContainers"]
    assert configuration(manifests)["targets"] == config["targets"]
    assert sidecar["image"] == "registry.example/llm-slo-prober@sha256:" + "0" * 64
    assert sidecar["resources"]["limits"] == {"cpu": "100m", "memory": "256Mi"}
    assert sidecar["env"][2]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['team.example/name']"


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"config": {"targets": []}}, r"llm-slo-prober-sidecar\.config\.targets: needed: at least the engine"),
        ({"config": {"targets": [{"url": "ENGINE"}]}}, "meet the specifications of the schema"),
        ({"image": {"repository": ""}}, r"llm-slo-prober-sidecar\.image\.repository: needed"),
        ({"imagePullPolicy": "Always"}, "meet the specifications of the schema"),
        ({"config": {"slos": {"ttft": {"signal": "ttft", "treshold": "1s"}}}}, r"treshold"),
    ],
    ids=str,
)
@pytest.mark.parametrize("program", [HELM_3, HELM_4], ids=["3", "4"])
def test_a_sidecar_of_nothing_is_refused(example: Path, program: Path, over: dict[str, Any], message: str) -> None:
    """At `helm template`: without targets, with a placeholder, without an image, with an unknown value or key of config."""
    with pytest.raises(Refused, match=message):
        helm(program, "llama", {KEY: over}, NATIVE, folder=example)


def test_two_engines_of_one_release_have_a_configuration_each(example: Path, tmp_path: Path) -> None:
    """The engine's chart is in the name of the ConfigMap, unless the release is named after it; the name has at most 63 characters."""
    umbrella = tmp_path / "umbrella"
    umbrella.mkdir()
    (umbrella / "Chart.yaml").write_text("apiVersion: v2\nname: umbrella\nversion: 1.0.0\n")
    for engine in ("llama", "qwen"):
        shutil.copytree(example, umbrella / "charts" / engine)
        (umbrella / "charts" / engine / "Chart.yaml").write_text(
            (example / "Chart.yaml").read_text().replace("name: llama\n", f"name: {engine}\n")
        )
    for release, names in {
        "llama": {"llama-llm-slo-prober", "llama-qwen-llm-slo-prober"},
        "prod": {"prod-llama-llm-slo-prober", "prod-qwen-llm-slo-prober"},
    }.items():
        manifests = helm(HELM_3, release, {}, NATIVE, folder=umbrella)
        assert {each["metadata"]["name"] for each in manifests if each["kind"] == "ConfigMap"} == names
        volumes = [each["spec"]["template"]["spec"]["volumes"] for each in manifests if each["kind"] == "Deployment"]
        assert {volume[0]["configMap"]["name"] for volume in volumes} == names
    long = one(helm(HELM_3, "a" * 53, {}, NATIVE, folder=example), "ConfigMap")["metadata"]["name"]
    assert long == "a" * 48 + "-llm-slo-prober"


def test_a_key_of_the_engine_reaches_the_sidecar(example: Path) -> None:
    """In environment variables or, as the README has it, in a file that the sidecar's user may read without a group of the pod."""
    page = (ROOT / "deploy" / LIBRARY / "README.md").read_text()
    (mounts,) = re.findall(r"`(extraSecretMounts: .*?)` the key `token`", page)
    (targets,) = re.findall(r"`(targets: .*bearer_token_file.*?)`", page)
    key = {"name": "ENGINE_KEY", "valueFrom": {"secretKeyRef": {"name": "llama-key", "key": "token"}}}
    keys = [{"secretRef": {"name": "engine-keys"}}]
    manifests = rendered(
        example, config=yaml.safe_load(targets), extraEnv=[key], extraEnvFrom=keys, **yaml.safe_load(mounts)
    )
    pod = workload(manifests)["spec"]["template"]["spec"]
    (sidecar,) = pod["initContainers"]
    assert sidecar["env"][-1] == key
    assert sidecar["envFrom"] == keys
    assert sidecar["volumeMounts"][-1] == {"name": "engine-key", "mountPath": "/etc/engine-key", "readOnly": True}
    assert pod["volumes"][-1] == {"name": "engine-key", "secret": {"secretName": "llama-key"}}
    (target,) = configuration(manifests)["targets"]
    assert target["auth"]["bearer_token_file"] == sidecar["volumeMounts"][-1]["mountPath"] + "/token"
    for manifest in manifests:
        kubernetes_validate.validate(manifest, "1.29", strict=True)


def test_arguments_and_volumes_of_the_engine_s_chart_are_beside_its_own(example: Path) -> None:
    """Those that the sidecar itself depends on are refused."""
    over = {
        "image": {"repository": "registry.example/llm-slo-prober", "pullPolicy": "Always"},
        "extraArgs": ["--log.level=debug"],
        "extraVolumes": [{"name": "authorities", "configMap": {"name": "authorities"}}],
        "extraVolumeMounts": [{"name": "authorities", "mountPath": "/etc/authorities", "readOnly": True}],
    }
    usual, further = (workload(rendered(example, **each))["spec"]["template"]["spec"] for each in ({}, over))
    (was,), (sidecar,) = usual["initContainers"], further["initContainers"]
    assert sidecar["imagePullPolicy"] == "Always"
    assert sidecar["args"] == was["args"] + over["extraArgs"]
    assert sidecar["volumeMounts"] == was["volumeMounts"] + over["extraVolumeMounts"]
    assert [each for each in further["volumes"] if each not in usual["volumes"]] == over["extraVolumes"]
    with pytest.raises(Refused, match=r"extraArgs: remove --web.listen-address=:80"):
        rendered(example, extraArgs=["--web.listen-address=:80"])


@pytest.mark.parametrize("program", [HELM_3, HELM_4], ids=["3", "4"])
def test_a_cluster_may_choose_the_user(example: Path, program: Path) -> None:
    """As OpenShift does: an empty value takes the fixed user away, and leaves the rest. Root is refused."""
    (sidecar,) = workload(helm(program, "llama", {KEY: {"runAsUser": ""}}, NATIVE, folder=example))["spec"]["template"][
        "spec"
    ]["initContainers"]
    component = yaml.safe_load((KUSTOMIZE / "components/sidecar/container.yaml").read_text())["spec"]["template"]
    (expected,) = component["spec"]["initContainers"]
    del expected["securityContext"]["runAsUser"]
    assert sidecar["securityContext"] == expected["securityContext"]
    with pytest.raises(Refused, match="runAsUser"):
        helm(program, "llama", {KEY: {"runAsUser": 0}}, NATIVE, folder=example)


def test_an_alias_is_refused(example: Path, tmp_path: Path) -> None:
    """The templates know the library's values by its own name only, and say so."""
    aliased = shutil.copytree(example, tmp_path / "aliased")
    chart = aliased / "Chart.yaml"
    chart.write_text(
        chart.read_text().replace("{name: llm-slo-prober-sidecar,", "{name: llm-slo-prober-sidecar, alias: prober,")
    )
    values = aliased / "values.yaml"
    values.write_text(values.read_text().replace(KEY, "prober"))
    with pytest.raises(Refused, match=r"llm-slo-prober-sidecar in Chart\.yaml without alias"):
        helm(HELM_3, "llama", {}, NATIVE, folder=aliased)


def test_a_condition_takes_the_sidecar_away(example: Path, tmp_path: Path) -> None:
    """With every include in the `if` of the README; without it Helm's error is the one that the README quotes."""
    page = (ROOT / "deploy" / LIBRARY / "README.md").read_text()
    ((opening, closing),) = re.findall(r"^ *\{\{- (if .*? }})\{\{ include .*? \}\}(\{\{ end }})$", page, re.M)
    conditional = shutil.copytree(example, tmp_path / "conditional")
    chart = conditional / "Chart.yaml"
    condition = f"{{name: {KEY}, condition: {KEY}.enabled,"
    chart.write_text(chart.read_text().replace(f"{{name: {KEY},", condition))
    (error,) = re.findall(r"`(no template \".*?\")`", page)
    with pytest.raises(Refused, match=re.escape(error)):
        helm(HELM_3, "llama", {KEY: {"enabled": False}}, NATIVE, folder=conditional)
    for template in (conditional / "templates").iterdir():
        text = re.sub(r"\{\{-? (include .*?) }}", rf"{{{{- {opening}{{{{ \1 }}}}{closing}", template.read_text())
        template.write_text(text)
    (deployment,) = helm(HELM_3, "llama", {KEY: {"enabled": False}}, NATIVE, folder=conditional)
    assert not deployment["spec"]["template"]["spec"]["initContainers"]
    with_it = helm(HELM_3, "llama", {KEY: {"enabled": True}}, NATIVE, folder=conditional)
    assert sorted(map(json.dumps, with_it)) == sorted(map(json.dumps, rendered(example)))


def test_a_kubernetes_without_native_sidecars_is_refused(example: Path) -> None:
    """It would take the sidecar for a step before the engine, and wait for ever."""
    with pytest.raises(Refused, match=r"native sidecars need Kubernetes 1\.29"):
        helm(HELM_3, "llama", {}, folder=example)


def test_the_readme_includes_what_the_example_includes() -> None:
    """Every line of the guide is in the example's templates; its dependency is this library in a clone beside the chart."""
    page = (ROOT / "deploy" / LIBRARY / "README.md").read_text()
    deployment = (ROOT / "deploy" / EXAMPLE / "templates/deployment.yaml").read_text()
    included = re.findall(r"^ +\{\{- include .* nindent .*$", page, re.M)
    assert len(included) == 4
    assert [line for line in included if line not in deployment.splitlines()] == []
    (ours,) = re.findall(r"^dependencies:\n.*", page, re.M)
    (dependency,) = yaml.safe_load(ours)["dependencies"]
    (expected,) = yaml.safe_load((ROOT / "deploy" / EXAMPLE / "Chart.yaml").read_text())["dependencies"]
    clone = dependency.pop("repository").removeprefix("file://../llm-slo-prober/")
    assert (ROOT / clone).samefile(ROOT / "deploy" / LIBRARY)
    assert expected.pop("repository")
    assert dependency == expected
