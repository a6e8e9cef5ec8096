"""Manifests are valid, hardened and consistent, checked without a cluster."""

import copy
import itertools
import json
import re
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft7Validator, Draft202012Validator

from prober import __version__
from prober.daemon.registry import ALL as ALL_SERIES
from tests.commands import prober
from tests.deploy.hardening import PROBED, containers
from tests.deploy.rendering import CHART, FULLNAME, KUSTOMIZE, ROOT, Manifest, chart, documents, values
from tests.deploy.schemas import custom
from tests.deploy.shipped import (
    AUTOPILOT,
    CHARTS,
    FULL,
    MONITORING,
    OVERLAYS,
    RULES,
    SHARDED,
    STANDALONE,
    configuration,
    flag,
    one,
    rollouts,
    workload,
)

SINCE = (1, 28)
"""The first release with native sidecars."""


def releases() -> list[str]:
    """Every Kubernetes from the first with native sidecars to the newest whose schemas there are."""
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    versions = {tuple(map(int, path.name[1:].split("-")[0].split(".")[:2])) for path in folder.glob("v*-local*")}
    assert (1, 28) in versions
    return [f"{major}.{minor}" for major, minor in sorted(version for version in versions if version >= SINCE)]


@pytest.mark.parametrize(
    "release",
    [releases()[0], *(pytest.param(each, marks=pytest.mark.slow) for each in releases()[1:-1]), releases()[-1]],
)
def test_kubernetes_knows_every_field(shipped: dict[str, list[Manifest]], release: str) -> None:
    """By its own schemas, unknown fields refused."""
    distinct = {
        json.dumps(manifest, sort_keys=True): manifest for manifests in shipped.values() for manifest in manifests
    }
    for manifest in distinct.values():
        if custom(manifest["apiVersion"], manifest["kind"]) is None:
            kubernetes_validate.validate(manifest, release, strict=True)


def test_a_field_that_does_not_exist_is_refused() -> None:
    """The tests of fields can fail."""
    manifests = copy.deepcopy(chart(**FULL))
    deployment, monitor = workload(manifests), one(manifests, "ServiceMonitor")
    deployment["spec"]["template"]["spec"]["containers"][0]["livelinessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, releases()[-1], strict=True)
    monitor["spec"]["endpoints"][0]["intervall"] = "15s"
    assert list(Draft202012Validator(custom(monitor["apiVersion"], "ServiceMonitor") or {}).iter_errors(monitor))


def test_the_job_of_an_analysis_is_a_job() -> None:
    """Argo Rollouts makes a Job of it; its arguments in braces are put in before."""
    (template,) = (rollout for rollout in rollouts() if rollout["kind"] == "AnalysisTemplate")
    spec = template["spec"]["metrics"][0]["provider"]["job"]["spec"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "gate"}, "spec": spec}
    kubernetes_validate.validate(job, releases()[-1], strict=True)


def test_custom_resources_have_fields_that_exist(shipped: dict[str, list[Manifest]]) -> None:
    """By schemas of the used fields; at least one of each kind is there."""
    seen = set()
    for manifests in shipped.values():
        for manifest in manifests:
            schema = custom(manifest["apiVersion"], manifest["kind"])
            if schema is None:
                continue
            Draft202012Validator(schema).validate(manifest)
            seen.add(manifest["kind"])
    assert seen == {
        "ServiceMonitor",
        "PodMonitor",
        "ScrapeConfig",
        "Probe",
        "PrometheusRule",
        "AnalysisTemplate",
        "MetricTemplate",
        "ScaledObject",
    }


def test_a_shard_asks_for_what_a_hundred_targets_take(shipped: dict[str, list[Manifest]]) -> None:
    """Three of them fit a node of one core; what hundreds of targets may take is allowed. A single prober requests less."""
    requests = {
        (manifest["kind"], container["resources"]["requests"]["cpu"], container["resources"]["limits"]["memory"])
        for where in STANDALONE
        if where != "chart, autopilot"
        for manifest in [workload(shipped[where])]
        for _, container in containers(manifest)
    }
    assert requests == {("Deployment", "100m", "256Mi"), ("StatefulSet", "200m", "768Mi")}


@pytest.mark.parametrize("replicas", [1, 3])
def test_autopilot_leaves_the_containers_as_they_are(replicas: int) -> None:
    """Limits equal requests, of the prober and of the Job of `helm test`; none is below its minimum, nor out of its ratio."""
    manifests = chart(**AUTOPILOT, replicas=replicas)
    for manifest in (workload(manifests), one(manifests, "Job")):
        ((_, container),) = containers(manifest)
        resources = container["resources"]
        assert resources["limits"] == resources["requests"]
        cpu_m, memory_mi = (
            int(resources["limits"]["cpu"].removesuffix("m")),
            int(resources["limits"]["memory"].removesuffix("Mi")),
        )
        assert cpu_m >= 250
        assert memory_mi >= 512
        assert 1 <= (memory_mi / 1024) / (cpu_m / 1000) <= 6.5


def fitting(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return bool(selector) and selector.items() <= labels.items()


def test_selectors_find_what_they_are_for(shipped: dict[str, list[Manifest]]) -> None:
    """Service, policy and budget the pod; the ServiceMonitor the Service; the PodMonitor the sidecar. Ports by name."""
    for where in STANDALONE:
        manifests = shipped[where]
        pod = workload(manifests)["spec"]["template"]
        ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        service = one(manifests, "Service")
        labels = pod["metadata"]["labels"]
        assert fitting(service["spec"]["selector"], labels), where
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
        assert fitting(one(manifests, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"], labels), where
        assert fitting(one(manifests, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"], labels), where
        for monitor in (manifest for manifest in manifests if manifest["kind"] == "ServiceMonitor"):
            assert fitting(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"]), where
            assert service["metadata"]["labels"][monitor["spec"]["jobLabel"]] == "llm-slo-prober"
            assert {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]} <= {
                port["name"] for port in service["spec"]["ports"]
            }


@pytest.mark.parametrize("name", ["overlays/vllm", "overlays/sglang"])
def test_the_sidecar_leaves_the_engine_as_it_was(shipped: dict[str, list[Manifest]], name: str) -> None:
    """The engine's own container, selector and labels are untouched; the prober is a native sidecar that is scraped."""
    before = documents((KUSTOMIZE / name / "engine.yaml").read_text())[0]
    after = one(shipped[name], "Deployment")
    assert after["spec"]["template"]["spec"]["containers"] == before["spec"]["template"]["spec"]["containers"]
    assert after["spec"]["selector"] == before["spec"]["selector"]
    (sidecar,) = after["spec"]["template"]["spec"]["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    volumes = {volume["name"]: volume for volume in after["spec"]["template"]["spec"]["volumes"]}
    config_map = one(shipped[name], "ConfigMap")["metadata"]["name"]
    assert volumes[sidecar["volumeMounts"][0]["name"]]["configMap"] == {"name": config_map}, "needed, not optional"
    account = "/var/run/secrets/kubernetes.io/serviceaccount"
    cover = next(mount["name"] for mount in sidecar["volumeMounts"] if mount["mountPath"] == account)
    assert "emptyDir" in volumes[cover], "else the kubelet mounts the pod's token there"
    monitor = one(shipped[MONITORING], "PodMonitor")["spec"]
    assert fitting(monitor["selector"]["matchLabels"], after["spec"]["template"]["metadata"]["labels"])
    assert monitor["podMetricsEndpoints"][0]["port"] == sidecar["ports"][0]["name"]
    assert f"{one(shipped[name], 'Deployment')['metadata']['name']}" == before["metadata"]["name"]
    config = configuration(shipped[name])
    engine = before["spec"]["template"]["spec"]["containers"][0]
    assert config["targets"][0]["url"].endswith(f":{engine['ports'][0]['containerPort']}")


def test_engines_of_one_namespace_share_nothing(shipped: dict[str, list[Manifest]]) -> None:
    """Deleting the kustomization of one leaves all objects of the others, and each mounts a ConfigMap of its own."""
    parts = {
        where: {(manifest["kind"], manifest["metadata"]["name"]) for manifest in shipped[where]}
        for where in ("overlays/vllm", "overlays/sglang", MONITORING)
    }
    for where, other in itertools.combinations(parts, 2):
        assert not parts[where] & parts[other], (where, other)
    for where in ("overlays/vllm", "overlays/sglang"):
        pod = one(shipped[where], "Deployment")["spec"]["template"]["spec"]
        mounted = {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume}
        assert mounted == {one(shipped[where], "ConfigMap")["metadata"]["name"]}


def test_runbooks_of_sidecars_have_a_service(shipped: dict[str, list[Manifest]]) -> None:
    """Of the name to which the shipped rules link, in front of every sidecar, ready or not; scraped by nothing."""
    service = one(shipped[MONITORING], "Service")
    template = one(shipped["overlays/vllm"], "Deployment")["spec"]["template"]
    (sidecar,) = template["spec"]["initContainers"]
    assert fitting(service["spec"]["selector"], template["metadata"]["labels"])
    (port,) = service["spec"]["ports"]
    assert port["targetPort"] == sidecar["ports"][0]["containerPort"]
    assert service["spec"]["publishNotReadyAddresses"]
    links = [
        rule["annotations"]["runbook_url"]
        for group in one(shipped[RULES], "PrometheusRule")["spec"]["groups"]
        for rule in group["rules"]
        if "runbook_url" in rule.get("annotations", ())
    ]
    assert {urlsplit(link).netloc for link in links} == {f"{service['metadata']['name']}:{port['port']}"}
    for where in STANDALONE:
        for monitor in (each for each in shipped[where] if each["kind"] == "ServiceMonitor"):
            assert not fitting(monitor["spec"]["selector"]["matchLabels"], service["metadata"]["labels"])


def test_the_sidecar_holds_no_pod_on_its_node(shipped: dict[str, list[Manifest]]) -> None:
    """The autoscaler moves a pod if its volumes on the node's disk are declared; the engine's own are left to its owner."""
    template = one(shipped["overlays/vllm"], "Deployment")["spec"]["template"]
    own = {
        volume["name"]
        for volume in template["spec"]["volumes"]
        if volume["name"].startswith("llm-slo-prober-")
        and volume.get("emptyDir", {"medium": "Memory"}).get("medium") != "Memory"
    }
    declared = template["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes"]
    assert set(declared.split(",")) == own


def test_no_change_of_configuration_restarts_an_engine(shipped: dict[str, list[Manifest]]) -> None:
    """ConfigMaps have no hash in their names, and volumes are folders: the prober reads the file again by itself."""
    for where in OVERLAYS:
        names = {manifest["metadata"]["name"] for manifest in shipped[where] if manifest["kind"] == "ConfigMap"}
        assert names, where
        assert not any(re.search("-[0-9a-z]{10}$", name) for name in names), where
        for manifest in shipped[where]:
            for _, container in containers(manifest):
                assert not any("subPath" in mount for mount in container["volumeMounts"])


@pytest.mark.parametrize("name", [*OVERLAYS, *CHARTS])
def test_a_probe_asks_for_a_target_that_is_configured(shipped: dict[str, list[Manifest]], name: str) -> None:
    """By its name. test_starting.py starts the prober with each configuration."""
    targets = {target.get("name") for target in configuration(shipped[name]).get("targets") or ()}
    for probe in (manifest for manifest in shipped[name] if manifest["kind"] == "Probe"):
        assert set(probe["spec"]["targets"]["staticConfig"]["static"]) <= targets


@pytest.mark.parametrize("where", STANDALONE)
def test_who_speaks_tls_agrees(shipped: dict[str, list[Manifest]], where: str) -> None:
    """The prober's pages, the kubelet, the ServiceMonitor and the Probe with the certificate's name, and the runbook links."""
    manifests = shipped[where]
    container = workload(manifests)["spec"]["template"]["spec"]["containers"][0]
    tls = flag(container, "web.config.file") is not None
    for name in PROBED:
        assert container[name]["httpGet"].get("scheme", "HTTP") == ("HTTPS" if tls else "HTTP")
    for monitor in (manifest for manifest in manifests if manifest["kind"] == "ServiceMonitor"):
        (endpoint,) = monitor["spec"]["endpoints"]
        assert (endpoint.get("scheme"), "tlsConfig" in endpoint) == (("https", True) if tls else (None, False))
        if tls:
            assert endpoint["tlsConfig"]["serverName"].split(".")[0] == one(manifests, "Service")["metadata"]["name"]
            assert secret_of(endpoint) in mounted(manifests)
    for probe in (manifest["spec"] for manifest in manifests if manifest["kind"] == "Probe"):
        assert (probe["prober"]["scheme"], "tlsConfig" in probe) == (("https", True) if tls else ("http", False))
        assert not tls or secret_of(probe) in mounted(manifests)
    if where.startswith("chart, as"):
        rules = [rule for group in one(manifests, "PrometheusRule")["spec"]["groups"] for rule in group["rules"]]
        links = {
            rule["annotations"]["runbook_url"].rpartition("/")[0]
            for rule in rules
            if "runbook_url" in rule.get("annotations", ())
        }
        pages = " ".join(rule.get("annotations", {}).get("prober_url", "") for rule in rules)
        assert set(re.findall(r"}}(\w+)://{{", pages)) == {"https" if tls else "http"}
        assert links == {f"{'https' if tls else 'http'}://{FULLNAME}.llm.svc:9742/runbooks"}


def secret_of(endpoint: dict[str, Any]) -> str:
    """The Secret with the authority that whoever scrapes trusts."""
    return str(endpoint["tlsConfig"]["ca"]["secret"]["name"])


def mounted(manifests: list[Manifest]) -> set[str]:
    """Secrets that the prober has its key pair from."""
    volumes = workload(manifests)["spec"]["template"]["spec"]["volumes"]
    sources = [source for volume in volumes for source in volume.get("projected", {}).get("sources", ())]
    return {source["secret"]["name"] for source in sources}


def test_promtool_takes_the_rules(promtool: Path, tmp_path: Path, shipped: dict[str, list[Manifest]]) -> None:
    """The rules are in the form of the operator, together with the queries of the rollouts."""
    spec = one(shipped[RULES], "PrometheusRule")["spec"]
    queries = [
        one(list(rollouts()), "MetricTemplate")["spec"]["query"].replace("{{ interval }}", "5m"),
        one(list(rollouts()), "AnalysisTemplate")["spec"]["metrics"][1]["provider"]["prometheus"]["query"],
    ]
    assert {"llmslo_slo_bad_events_total", "llmslo_slo_events_total"} <= {series.name for series in ALL_SERIES}
    extra = {
        "name": "rollouts",
        "rules": [{"record": f"a:b:query{at}", "expr": query} for at, query in enumerate(queries)],
    }
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [*spec["groups"], extra]}))
    done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_flag_exists(shipped: dict[str, list[Manifest]]) -> None:
    """Of each command that a manifest calls; with its help asked for, a flag that it does not know is still an error."""
    commands = {
        tuple(container["args"])
        for manifests in shipped.values()
        for manifest in manifests
        for _, container in containers(manifest)
        if "command" not in container
    }
    helped = {command: prober(command, "--help-all").stdout.split() for command in {args[0] for args in commands}}
    assert helped.keys() == {"run", "gate"}
    for args in commands:
        for word in args[1:]:
            assert not word.startswith("--") or word.split("=")[0] in helped[args[0]], word


def test_every_dashboard_is_there(shipped: dict[str, list[Manifest]]) -> None:
    """In the component and in the chart, byte for byte, each in a ConfigMap of its own that the sidecar of Grafana looks for."""
    expected = {path.name: path.read_text() for path in (ROOT / "dashboards").glob("*.json")}
    for where in ("overlays/vllm-production-stack", "chart, everything on"):
        maps = [
            manifest
            for manifest in shipped[where]
            if manifest["metadata"].get("labels", {}).get("grafana_dashboard") == "1"
        ]
        held = {name: text.rstrip() for config_map in maps for name, text in config_map["data"].items()}
        assert held == {name: text.rstrip() for name, text in expected.items()}, where
        assert len(maps) == len(expected)


SCHEMA = yaml.safe_load((CHART / "values.schema.json").read_text())


def test_the_values_fit_their_schema() -> None:
    """Both the shipped values and those with everything enabled."""
    Draft7Validator.check_schema(SCHEMA)
    Draft7Validator(SCHEMA).validate(values())
    Draft7Validator(SCHEMA).validate(values(**FULL))
    Draft7Validator(SCHEMA).validate(values(**SHARDED))
    assert values().keys() | {"global", "enabled"} == SCHEMA["properties"].keys()


@pytest.mark.parametrize(
    "over",
    [
        {"resources": {"limits": {"memory": True}}},
        {"resources": {"request": {"cpu": "1"}}},
        {"serviceMonitor": {"relabelings": [{"target_label": "cluster"}]}},
        {"affinity": {"podAntiAffinty": {}}},
        {"service": {"port": 0}},
        {"nameOverride": "Not a name"},
        {"image": {"digest": "latest"}},
        {"config": {"targets": [{"name": "no address"}]}},
        {"config": {"slos": {"ttft": {"signal": "ttft", "threshhold": "500ms", "objective": "99%"}}}},
        {"config": {"defaults": {"budget": {"tokens_per_day": "many"}}}},
        {"probe": {"enabled": True}},
        {"probe": {"enabled": True, "targets": ["llama"], "interval": "30s"}},
        {"networkPolicy": {"egress": [{"from": []}]}},
        {"replicas": 0},
        {"persistence": {"existingClaims": "learnt"}},
        {"extraEnvFrom": [{"secretRef": {"name": "a"}, "configMapRef": {"name": "b"}}]},
        {"extraEnvFrom": [{"secretRefs": {"name": "a"}}]},
        {"podDisruptionBudget": {"maxUnavailable": "half"}},
        {"networkPolicy": {"ingress": [{"to": []}]}},
        {"service": {"nodePort": "30742"}},
        {"serviceMonitor": {"namespace": "Not a name"}},
        {"vantage": "eu west"},
        {"vantage": "$(NODE_NAME)"},
        {"replicas": "2"},
        {"discovery": {"namespaces": ["Not a name"]}},
        {"extraSecretMounts": [{"name": "token", "secretName": "a", "mountPath": "relative"}]},
    ],
    ids=str,
)
def test_wrong_values_are_refused(over: dict[str, Any]) -> None:
    """Before anything is sent."""
    assert list(Draft7Validator(SCHEMA).iter_errors(values(**over)))


def test_release_and_version_are_one() -> None:
    """The tags in deploy/ are the package's version."""
    held = yaml.safe_load((CHART / "Chart.yaml").read_text())
    library = yaml.safe_load((ROOT / "deploy/sidecar-chart/Chart.yaml").read_text())
    assert {held["version"], held["appVersion"], library["version"], library["appVersion"]} == {__version__}
    assert values()["image"]["tag"] == "", "else it does not follow appVersion"
    for path in (
        "Dockerfile",
        "deploy/compose.yaml",
        "deploy/rollouts/gate-job.yaml",
        "deploy/rollouts/analysistemplate.yaml",
        "deploy/kustomize/base/kustomization.yaml",
        "deploy/kustomize/components/sidecar/kustomization.yaml",
    ):
        assert __version__ in (ROOT / path).read_text(), path


@pytest.mark.parametrize("where", CHARTS)
def test_what_helm_tests_is_the_service(shipped: dict[str, list[Manifest]], where: str) -> None:
    """By its scheme and its certificate's CA; the test's pod is none of the Service's, and its Job does not outlive the release."""
    manifests = shipped[where]
    job, service = one(manifests, "Job"), one(manifests, "Service")
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert job["spec"]["ttlSecondsAfterFinished"] <= 3600
    template = job["spec"]["template"]
    assert not service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    ((pod, container),) = containers(job)
    ((_, prober),) = containers(workload(manifests))
    assert container["image"] == prober["image"]
    _, url, *ca = container["args"]
    scheme = prober["readinessProbe"]["httpGet"].get("scheme", "HTTP").lower()
    assert url == f"{scheme}://{service['metadata']['name']}.llm.svc:{service['spec']['ports'][0]['port']}"
    assert bool(ca) is (scheme == "https")
    for file in ca:
        (mount,), (volume,) = container["volumeMounts"], pod["volumes"]
        assert file == f"{mount['mountPath']}/{volume['secret']['items'][0]['path']}"
