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
    ],
    ids=str,
)
@pytest.mark.parametrize("program", [HELM_3, HELM_4], ids=["3", "4"])
def test_a_sidecar_of_nothing_is_refused(example: Path, program: Path, over: dict[str, Any], message: str) -> None:
    """At `helm template`: without targets, with a placeholder, without an image, with a value that does not exist."""
    with pytest.raises(Refused, match=message):
        helm(program, "llama", {KEY: over}, NATIVE, folder=example)


def test_a_kubernetes_without_native_sidecars_is_refused(example: Path) -> None:
    """It would take the sidecar for a step before the engine, and wait for ever."""
    with pytest.raises(Refused, match=r"native sidecars need Kubernetes 1\.29"):
        helm(HELM_3, "llama", {}, folder=example)


def test_the_readme_includes_what_the_example_includes() -> None:
    """Every line of the guide is in the example's templates; its dependency is this library in a clone beside the chart."""
    page = (ROOT / "deploy" / LIBRARY / "README.md").read_text()
    deployment = (ROOT / "deploy" / EXAMPLE / "templates/deployment.yaml").read_text()
    included = [line for line in page.splitlines() if "include" in line and "nindent" in line]
    assert len(included) == 4
    assert [line for line in included if line not in deployment.splitlines()] == []
    (ours,) = re.findall(r"^dependencies:\n.*", page, re.M)
    (dependency,) = yaml.safe_load(ours)["dependencies"]
    (expected,) = yaml.safe_load((ROOT / "deploy" / EXAMPLE / "Chart.yaml").read_text())["dependencies"]
    clone = dependency.pop("repository").removeprefix("file://../llm-slo-prober/")
    assert (ROOT / clone).samefile(ROOT / "deploy" / LIBRARY)
    assert expected.pop("repository")
    assert dependency == expected
