"""The chart by both releases of Helm: what they make of it, and what they refuse."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.rendering import HELM_3, HELM_4, MINIMAL, RELEASE, ROOT, Manifest, Refused, chart, helm, merged
from tests.deploy.shipped import CHARTS, FULL, SHARDED, flag, one, workload

EVICTION = "unhealthyPodEvictionPolicy"  # of a PodDisruptionBudget, since Kubernetes 1.26


def placed(manifests: list[Manifest]) -> dict[tuple[str, ...], Manifest]:
    """By what names one in a cluster, without what depends on the release of Kubernetes."""
    by_name: dict[tuple[str, ...], Manifest] = {
        (manifest["kind"], manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"]): manifest
        for manifest in manifests
    }
    assert len(by_name) == len(manifests)
    one(manifests, "PodDisruptionBudget")["spec"].pop(EVICTION, None)
    return by_name


@pytest.mark.parametrize("over", CHARTS.values(), ids=CHARTS)
def test_both_make_the_same(over: dict[str, Any]) -> None:
    """All other tests of the chart therefore hold for either."""
    assert placed(helm(HELM_3, RELEASE, over)) == placed(helm(HELM_4, RELEASE, over))


@pytest.mark.parametrize(("release", "has_field"), [("1.21", False), ("1.25", False), ("1.26", True), ("1.34", True)])
def test_a_field_goes_only_to_a_kubernetes_that_knows_it(release: str, has_field: bool) -> None:
    """Helm refuses to install an object with a field that its server does not know."""
    manifests = helm(HELM_3, RELEASE, MINIMAL, f"--kube-version={release}")
    assert (EVICTION in one(manifests, "PodDisruptionBudget")["spec"]) is has_field


def test_a_kubernetes_that_is_too_old_is_refused() -> None:
    """Before 1.21 there is neither policy/v1 nor discovery.k8s.io/v1."""
    with pytest.raises(Refused, match=r"requires kubeVersion: >=1\.21\.0-0"):
        helm(HELM_3, RELEASE, MINIMAL, "--kube-version=1.20")


def names(release: str, **over: Any) -> set[str]:
    """The names of the objects that every release has."""
    manifests = chart(release, **over)
    kinds = ("Service", "ServiceAccount", "ConfigMap", "NetworkPolicy", "PodDisruptionBudget")
    return {workload(manifests)["metadata"]["name"], *(one(manifests, kind)["metadata"]["name"] for kind in kinds)}


@pytest.mark.parametrize(
    ("release", "over", "name"),
    [
        ("llama", {}, "llama-llm-slo-prober"),
        ("llm-slo-prober", {}, "llm-slo-prober"),
        ("my-llm-slo-prober-2", {}, "my-llm-slo-prober-2"),
        ("llama", {"nameOverride": "probes"}, "llama-probes"),
        ("llama", {"fullnameOverride": "probes"}, "probes"),
        ("a" * 53, {}, "a" * 52),  # of a Helm release, the longest
        ("a" * 51, {}, "a" * 51),  # no hyphen at its end
    ],
)
def test_objects_are_named_after_release_and_chart(release: str, over: dict[str, Any], name: str) -> None:
    """A release with the name of an engine does not take the engine's names; a pod of a StatefulSet has room for its suffix."""
    assert names(release, **over) == {name}


def test_everything_that_depends_on_the_name_follows_it() -> None:
    """Leases, roles, links of alerts, the certificate's name, and what the test of Helm reads."""
    over = SHARDED | {"fullnameOverride": "probes", "prometheusRule": {"enabled": True}, "service": {"port": 443}}
    manifests = chart(**over)
    text = json.dumps(manifests)
    assert "prober-llm-slo-prober" not in text
    assert "//llm-slo-prober:" not in text, "a link to the name of another set of manifests"
    assert flag(workload(manifests)["spec"]["template"]["spec"]["containers"][0], "lease.name") == "probes"
    (endpoint,) = one(manifests, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["tlsConfig"]["serverName"] == "probes.llm.svc"
    assert "https://probes.llm.svc:443/runbooks/" in json.dumps(one(manifests, "PrometheusRule"))
    assert one(manifests, "Job")["spec"]["template"]["spec"]["containers"][0]["args"][1] == "https://probes.llm.svc:443"


def test_an_account_of_another_chart_is_used() -> None:
    """By its name, and not created."""
    manifests = chart(**SHARDED, serviceAccount={"create": False, "name": "reader"})
    assert not [manifest for manifest in manifests if manifest["kind"] == "ServiceAccount"]
    assert workload(manifests)["spec"]["template"]["spec"]["serviceAccountName"] == "reader"
    bound = [manifest["subjects"] for manifest in manifests if manifest["kind"] == "RoleBinding"]
    assert {subject["name"] for subjects in bound for subject in subjects} == {"reader"}


def test_labels_and_annotations_are_where_they_were_asked_for() -> None:
    """Common labels everywhere, those of an object at it alone; a selector has none of them."""
    manifests = chart(**FULL)
    assert all(manifest["metadata"]["labels"]["app.kubernetes.io/part-of"] == "inference" for manifest in manifests)
    pod = workload(manifests)["spec"]["template"]["metadata"]
    assert pod["labels"]["team"] == "inference"
    assert pod["annotations"]["sidecar.istio.io/inject"] == "false"
    assert workload(manifests)["spec"]["selector"]["matchLabels"].keys() == {
        "app.kubernetes.io/name",
        "app.kubernetes.io/instance",
    }


@pytest.mark.parametrize("program", [HELM_3, HELM_4], ids=["3", "4"])
@pytest.mark.parametrize(
    ("over", "problem"),
    [
        ({"web": {"tlsSecret": "prober-tls"}}, "configSecret"),
        ({"colour": "blue"}, "colour"),
        ({"config": {"slos": {"ttft": {"threshhold": "500ms"}}}}, r"config.slos.ttft.*threshhold"),
        ({"config": {"targets": [{"url": "http://llama", "budget": {"cost_per_day": "much"}}]}}, "cost_per_day"),
    ],
    ids=str,
)
def test_helm_refuses_wrong_values(program: Path, over: dict[str, Any], problem: str) -> None:
    """By the chart's schema, in its own words; the configuration by the schema of prober.yaml."""
    with pytest.raises(Refused, match=f"(?s)values don't meet the specifications of the schema.*{problem}"):
        helm(program, RELEASE, merged(MINIMAL, over))


@pytest.mark.parametrize("program", [HELM_3, HELM_4], ids=["3", "4"])
@pytest.mark.parametrize(
    ("over", "problem"),
    [
        ({"image": {"repository": ""}}, "image.repository: needed: the image of the prober"),
        ({"config": {"targets": None}}, "config.targets: needed: the engines and gateways to probe"),
        ({"config": {"targets": [], "discovery": []}}, "config.targets: needed: the engines and gateways to probe"),
    ],
    ids=str,
)
def test_helm_asks_for_what_only_its_user_knows(program: Path, over: dict[str, Any], problem: str) -> None:
    """The chart has neither a target nor an image by default, and says what to set."""
    with pytest.raises(Refused, match=problem):
        helm(program, RELEASE, merged(MINIMAL, over))


@pytest.mark.parametrize(
    "words", [["deploy/chart", "--values=deploy/chart/ci/minimal-values.yaml"], ["deploy/sidecar-chart"]], ids=str
)
def test_the_charts_pass_the_lint_of_helm(words: list[str]) -> None:
    """Strictly: a warning fails. Chart-testing takes the values in ci/ as well."""
    done = subprocess.run([HELM_3, "lint", "--strict", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
