"""The chart by both releases of Helm: what they make of it, and what they refuse."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.rendering import (
    FULLNAME,
    HELM_3,
    HELM_4,
    MINIMAL,
    RELEASE,
    ROOT,
    Manifest,
    Refused,
    chart,
    helm,
    merged,
    rendered_text,
)
from tests.deploy.shipped import CHARTS, ELSEWHERE, FULL, SHARDED, flag, one, workload

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


@pytest.mark.parametrize(
    ("release", "over"),
    [("123", {}), ("eu.llama", {}), ("prober", {"fullnameOverride": "1st"}), ("llm-slo-prober.eu", {})],
    ids=str,
)
@pytest.mark.parametrize("program", [HELM_3, HELM_4], ids=["3", "4"])
def test_a_name_that_no_service_can_have_is_refused(program: Path, release: str, over: dict[str, Any]) -> None:
    """Helm lets a release begin with a digit or have a dot; the API server refuses such a Service after it has made other objects."""
    with pytest.raises(Refused, match="fullnameOverride: needed: Kubernetes refuses a Service called"):
        helm(program, release, merged(MINIMAL, over))


@pytest.mark.parametrize("word", ["123", "1e3", "no", "true"])
def test_a_name_that_yaml_reads_as_a_number_or_a_truth_stays_text(word: str) -> None:
    """Wherever the release, its namespace or a user names something."""
    over = merged(FULL, {"fullnameOverride": "probes", "nameOverride": word, "discovery": {"namespaces": [word]}})
    secrets = {
        "web": {"configSecret": word, "tlsSecret": word},
        "extraSecretMounts": [{"name": "123", "secretName": word, "mountPath": "/token"}],
        "serviceMonitor": {"basicAuthSecret": word, "namespace": word},
        "persistence": {"existingClaim": word},
        "serviceAccount": {"name": word},
        "networkPolicy": {"monitoringNamespace": word},
        "priorityClassName": word,
        "dashboards": {"enabled": False},
    }
    text = rendered_text(HELM_3, word, merged(MINIMAL, merged(over, secrets)), f"--namespace={word}")
    manifests = [each for each in yaml.safe_load_all(text) if each]
    assert [path for each in manifests for path in unlike_text(each)] == []


def unlike_text(value: Any, path: str = "") -> list[str]:
    """The paths of names, namespaces and labels that are no text."""
    if isinstance(value, dict):
        return [found for key, part in value.items() for found in unlike_text(part, f"{path}.{key}")]
    if isinstance(value, list):
        return [found for part in value for found in unlike_text(part, path)]
    named = (
        path.lower().endswith(("name", "namespace", "matchnames", "accountname"))
        or ".labels." in path
        or "matchLabels." in path
    )
    return [path] if named and not isinstance(value, str) else []


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


OUTSIDE = "https://prober.example/slo"
POD_DISCOVERY: dict[str, Any] = {"config": {"discovery": [{"kubernetes": {}}]}}
NAMELESS: dict[str, Any] = {"serviceAccount": {"create": False}}


@pytest.mark.parametrize(
    ("over", "problem"),
    [
        (POD_DISCOVERY, "discovery.namespaces: needed by config.discovery"),
        (POD_DISCOVERY | NAMELESS, "serviceAccount.name: needed with serviceAccount.create=false"),
        (NAMELESS | {"replicas": 2}, "serviceAccount.name: needed with serviceAccount.create=false"),
        (
            NAMELESS | {"discovery": {"namespaces": ["llm"]}},
            "serviceAccount.name: needed with serviceAccount.create=false",
        ),
        ({"web": {"tlsSecret": "prober-tls"}}, "web.configSecret: needed with web.tlsSecret"),
        ({"extraArgs": ["--web.enable-admin-api"]}, "web.configSecret: needed with --web.enable-admin-api"),
        ({"extraArgs": ["--web.listen-address=:80"]}, "extraArgs: remove --web.listen-address=:80"),
        ({"extraArgs": ["--web.external-url=https://a.example"]}, "extraArgs: remove --web.external-url"),
        (
            {"extraSecretMounts": [{"name": "config", "secretName": "token", "mountPath": "/token"}]},
            "extraSecretMounts: the chart has a volume config",
        ),
        (
            {"extraVolumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1Gi"}}]},
            "extraVolumes: the chart has a volume tmp",
        ),
        ({"extraEnv": [{"name": "POD_NAME", "value": "prober-7"}]}, "extraEnv: remove POD_NAME"),
        ({"persistence": {"existingClaim": "learnt"}}, "persistence.enabled: needed with persistence.existingClaim"),
        (
            {"persistence": {"enabled": True, "existingClaim": "learnt"}, "replicas": 2},
            "persistence.existingClaim: not with several replicas",
        ),
        ({"service": {"nodePort": 30742}}, "service.nodePort: not with service.type ClusterIP"),
        ({"podMonitor": {"interval": "1m", "scrapeTimeout": "61s"}}, "podMonitor.scrapeTimeout: 61s is longer"),
        (
            {"serviceMonitor": {"scrapeNativeHistograms": True, "convertClassicHistogramsToNHCB": True}},
            "serviceMonitor.scrapeNativeHistograms: not with convertClassicHistogramsToNHCB",
        ),
        ({"probe": {"enabled": True, "targets": ["llama"]}, "replicas": 2}, "probe.enabled: not with several replicas"),
        (
            {"probe": {"enabled": True, "targets": ["llama", "lama"]}},
            "probe.targets: config.targets has no lama: it has llama",
        ),
    ],
    ids=str,
)
def test_values_that_contradict_each_other_are_refused(over: dict[str, Any], problem: str) -> None:
    """With the value to change, and the reason."""
    with pytest.raises(Refused, match=problem):
        chart(**over)


@pytest.mark.parametrize(
    "over",
    [
        POD_DISCOVERY | {"serviceAccount": {"create": False, "name": "reader"}},
        {"config": {"discovery": [{"kubernetes": {"api_server": "https://192.0.2.7", "namespaces": ["llm"]}}]}},
        NAMELESS,
        {"podMonitor": {"interval": "1m", "scrapeTimeout": "60s"}},
        {
            "podMonitor": {"scrapeTimeout": None},
            "commonLabels": None,
            "podLabels": None,
            "podAnnotations": None,
            "extraArgs": None,
        },
        {
            "probe": {"enabled": True, "targets": ["found"]},
            "config": {"discovery": [{"file": {"files": ["/targets.json"]}}]},
        },
        {"probe": {"enabled": True, "targets": ["localhost"]}, "config": {"targets": [{"url": "http://localhost"}]}},
    ],
    ids=str,
)
def test_values_that_may_fit_are_rendered(over: dict[str, Any]) -> None:
    """An account with roles of its own, another cluster's API server, and targets whose names only the prober knows."""
    assert workload(chart(**over))


@pytest.mark.parametrize(
    ("over", "has_token"),
    [
        ({}, False),
        ({"replicas": 2}, True),
        (POD_DISCOVERY | {"serviceAccount": {"create": False, "name": "reader"}}, True),
        ({"discovery": {"namespaces": ["llm"]}}, False),
    ],
    ids=str,
)
def test_a_pod_that_calls_the_api_server_has_a_token(over: dict[str, Any], has_token: bool) -> None:
    """Also if its account is of another chart."""
    assert workload(chart(**over))["spec"]["template"]["spec"]["automountServiceAccountToken"] is has_token


def test_a_claim_of_the_user_s_takes_the_place_of_the_chart_s() -> None:
    """A claim of the chart may be kept by an annotation when the release is removed."""
    theirs = chart(**ELSEWHERE)
    assert [each for each in theirs if each["kind"] == "PersistentVolumeClaim"] == []
    volumes = {each["name"]: each for each in workload(theirs)["spec"]["template"]["spec"]["volumes"]}
    assert volumes["storage"]["persistentVolumeClaim"] == {"claimName": "learnt"}
    keep = {"helm.sh/resource-policy": "keep"}
    kept: dict[str, Any] = {"persistence": {"enabled": True, "annotations": keep}}
    assert one(chart(**kept), "PersistentVolumeClaim")["metadata"]["annotations"] == keep
    (template,) = workload(chart(**kept, replicas=2))["spec"]["volumeClaimTemplates"]
    assert template["metadata"] == {"name": "storage", "annotations": keep}


def test_objects_of_prometheus_and_grafana_may_be_in_their_namespaces() -> None:
    """Named after the release's namespace too; they still find the prober and the sidecars of the release's own."""
    manifests = chart(**ELSEWHERE)
    elsewhere = {each["kind"]: each for each in manifests if "namespace" in each["metadata"]}
    assert {kind: each["metadata"]["namespace"] for kind, each in elsewhere.items()} == {
        **dict.fromkeys(("ServiceMonitor", "PodMonitor", "Probe", "PrometheusRule"), "monitoring"),
        "ConfigMap": "grafana",
    }
    for kind in ("ServiceMonitor", "PodMonitor"):
        assert elsewhere[kind]["metadata"]["name"] == f"llm.{FULLNAME}"
        assert elsewhere[kind]["spec"]["namespaceSelector"] == {"matchNames": ["llm"]}
    assert elsewhere["PrometheusRule"]["metadata"]["name"] == "llm-slo-prober", "Helm refuses a second one there"
    assert (
        one(chart(serviceMonitor={"enabled": True, "namespace": "llm"}), "ServiceMonitor")["metadata"]["name"]
        == FULLNAME
    )
    everywhere = merged(ELSEWHERE, {"podMonitor": {"namespaceSelector": {"any": True}}})
    assert one(chart(**everywhere), "PodMonitor")["spec"]["namespaceSelector"] == {"any": True}


@pytest.mark.parametrize("replicas", [1, 3])
def test_resources_of_the_values_hold_for_one_replica_and_for_several(replicas: int) -> None:
    """A CPU limit that the company demands is in every pod, with the chart's requests and memory limit; a number is text there."""
    limited: dict[str, Any] = {"resources": {"limits": {"cpu": 2}}}
    manifests = chart(**limited, replicas=replicas)
    pods = [each["spec"]["template"]["spec"] for each in (workload(manifests), one(manifests, "Job"))]
    (resources,) = {json.dumps(pod["containers"][0]["resources"], sort_keys=True) for pod in pods}
    amounts = {1: ("100m", "128Mi", "256Mi"), 3: ("200m", "192Mi", "768Mi")}[replicas]
    assert json.loads(resources) == {
        "requests": {"cpu": amounts[0], "memory": amounts[1]},
        "limits": {"cpu": "2", "memory": amounts[2]},
    }


@pytest.mark.parametrize("replicas", [1, 2])
def test_alerts_lead_to_the_address_for_people(replicas: int) -> None:
    """Which the prober is told, too. One replica has every target; of several the one that Prometheus scrapes for it does."""
    manifests = chart(replicas=replicas, web={"externalUrl": OUTSIDE + "/"}, prometheusRule={"enabled": True})
    args = workload(manifests)["spec"]["template"]["spec"]["containers"][0]["args"]
    assert f"--web.external-url={OUTSIDE}/" in args
    notes = [
        rule.get("annotations", {})
        for group in one(manifests, "PrometheusRule")["spec"]["groups"]
        for rule in group["rules"]
    ]
    assert {note["runbook_url"].rpartition("/")[0] for note in notes if "runbook_url" in note} == {
        OUTSIDE + "/runbooks"
    }
    pages = {note["prober_url"] for note in notes if "prober_url" in note}
    if replicas == 1:
        assert pages == {OUTSIDE + "/?target={{ $labels.target | urlquery }}"}
    else:
        assert all("}}http://{{" in page for page in pages)


def test_a_budget_of_disruption_can_be_left_out() -> None:
    """As a cluster whose policy refuses one for a single pod demands."""
    manifests = chart(podDisruptionBudget={"enabled": False})
    assert [each for each in manifests if each["kind"] == "PodDisruptionBudget"] == []


def test_roles_in_a_foreign_namespace_are_named_after_the_release_and_its_namespace() -> None:
    """Releases of one name in two namespaces may search the same namespace."""
    manifests = chart(**SHARDED)
    named = {
        (role["metadata"].get("namespace"), role["metadata"]["name"]) for role in manifests if role["kind"] == "Role"
    }
    discovery = f"{FULLNAME}-discovery"
    assert named == {(None, f"{FULLNAME}-leases"), ("llm", discovery), ("research", f"llm.{discovery}")}


@pytest.mark.parametrize("monitor", ["serviceMonitor", "podMonitor"])
def test_converted_histograms_are_scraped_as_text(monitor: str) -> None:
    """Else Prometheus reads protobuf, and stores the exponential buckets that it prefers."""
    kind = monitor[0].upper() + monitor[1:]
    plain: dict[str, Any] = {monitor: {"enabled": True}}
    assert "scrapeProtocols" not in one(chart(**plain), kind)["spec"]
    converting: dict[str, Any] = merged(plain, {monitor: {"convertClassicHistogramsToNHCB": True}})
    assert one(chart(**converting), kind)["spec"]["scrapeProtocols"] == ["OpenMetricsText1.0.0"]


class UniqueKeys(yaml.SafeLoader):
    """Refuses a mapping that has a key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)
        assert len(mapping) == len(node.value), node.start_mark
        return mapping


def test_no_label_of_a_value_replaces_one_of_the_chart() -> None:
    """The Service's selector still matches, and no key is there twice, which some tools refuse."""
    own = {
        "app.kubernetes.io/name": "mine",
        "app.kubernetes.io/instance": "mine",
        "app.kubernetes.io/version": "mine",
        "app.kubernetes.io/managed-by": "mine",
        "helm.sh/chart": "mine",
    }
    labels = own | {"team": "mine"}
    blocks = ("service", "serviceAccount", "serviceMonitor", "podMonitor", "probe", "prometheusRule")
    over = merged(FULL, {block: {"labels": labels} for block in blocks}) | {
        "commonLabels": own | {"team": "common"},
        "podLabels": labels,
        "podAnnotations": {"kubectl.kubernetes.io/default-container": "mine"},
    }
    text = rendered_text(HELM_3, RELEASE, merged(MINIMAL, over | {"dashboards": {"enabled": False}}))
    manifests = list(yaml.load_all(text, UniqueKeys))
    selector = one(manifests, "Service")["spec"]["selector"]
    pod = workload(manifests)["spec"]["template"]["metadata"]
    assert pod["labels"] == own | selector | {"team": "mine"}
    assert pod["annotations"] == {"kubectl.kubernetes.io/default-container": "llm-slo-prober"}
    metadata = {manifest["kind"]: manifest["metadata"]["labels"] for manifest in manifests}
    assert all("mine" not in {label[key] for key in own} for label in metadata.values())
    assert {metadata[kind]["team"] for kind in ("Service", "ServiceAccount", "Probe")} == {"mine"}
    assert metadata["ConfigMap"]["team"] == "common"


@pytest.mark.parametrize(
    "words", [["deploy/chart", "--values=deploy/chart/ci/minimal-values.yaml"], ["deploy/sidecar-chart"]], ids=str
)
def test_the_charts_pass_the_lint_of_helm(words: list[str]) -> None:
    """Strictly: a warning fails. Chart-testing takes the values in ci/ as well."""
    done = subprocess.run([HELM_3, "lint", "--strict", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
