"""The chart and kustomize send the same: every object of three sets, but for what Helm adds and what one of them cannot know."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.deploy.rendering import Manifest, chart
from tests.deploy.shipped import COUNTERPARTS, RULES

RELEASE = "llm-slo-prober"
"""Kustomize's names; the chart's are those of its release."""
HELMS = (
    *(f"app.kubernetes.io/{name}" for name in ("instance", "version", "managed-by")),
    *("helm.sh/chart", "imagePullPolicy", "unhealthyPodEvictionPolicy"),  # the last since Kubernetes 1.26
)
SETS: dict[str, dict[str, Any]] = {"base": {}} | COUNTERPARTS


def cleaned(value: Any) -> Any:
    """Without Helm's label and policy, and the namespace that it knows and kustomize does not."""
    if isinstance(value, dict):
        left = {key: cleaned(part) for key, part in value.items() if key not in HELMS}
        return {key: part for key, part in left.items() if (key, part) != ("namespace", "llm")}
    if isinstance(value, list):
        return [cleaned(part) for part in value]
    return value.replace(f"{RELEASE}.llm.svc", RELEASE) if isinstance(value, str) else value


def linked(manifest: Manifest) -> None:
    """The chart knows whether its links are of TLS, and has a group about copies of the rules; those of kustomize do not."""
    manifest["spec"]["groups"] = [group for group in manifest["spec"]["groups"] if group["name"] != "llm-slo-rules"]
    for group in manifest["spec"]["groups"]:
        for rule in group["rules"]:
            for name in {"runbook_url", "prober_url"} & set(rule.get("annotations", {})):
                rule["annotations"][name] = rule["annotations"][name].replace("https:", "http:")


def comparable(manifests: list[Manifest], replicas: int) -> dict[tuple[str, str], Manifest]:
    """The compared manifests by kind and name, without Helm's hooks; a dashboard is named by its file."""
    by_name = {}
    for manifest in map(cleaned, manifests):
        if "helm.sh/hook" in manifest["metadata"].get("annotations", {}):
            continue
        if manifest["kind"] == "ConfigMap":
            ((name, text),) = manifest["data"].items()
            manifest["data"] = {name: json.loads(text) if name.endswith(".json") else yaml.safe_load(text)}
            manifest["metadata"]["name"] = name
        if manifest["kind"] == "PrometheusRule":
            linked(manifest)
        if manifest["kind"] == "Role" and manifest["metadata"]["name"].endswith("-leases"):
            named = manifest["rules"][1]["resourceNames"]
            del named[replicas:]  # the component has names for ten shards
        if manifest["kind"] != "Secret":  # of the pages: a Helm release would keep its passwords
            by_name[manifest["kind"], manifest["metadata"]["name"]] = manifest
    return by_name


def apart(one: Any, other: Any, at: str = "") -> Iterator[str]:
    """Every place at which they differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys(), key=str):
            yield from apart(one.get(key), other.get(key), f"{at}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from apart(*pair, f"{at}[{index}]")
    elif one != other:
        yield f"{at}: {one!r} and {other!r}"


@pytest.mark.parametrize("name", SETS)
def test_chart_and_kustomize_say_the_same(shipped: dict[str, list[Manifest]], name: str) -> None:
    """Pods, roles, policies, monitors, rules, dashboards: one prober, three shards over TLS, one with a volume and everything."""
    replicas = SETS[name].get("replicas", 1)
    charts = comparable(chart(RELEASE, **SETS[name]), replicas)
    rules = (
        shipped[RULES] if ("PrometheusRule", RELEASE) in charts else []
    )  # kustomize has them apart, once per Prometheus
    ours = comparable([*shipped[name], *rules], replicas)
    assert list(apart(ours, charts)) == []
    assert len(ours) > 5


def test_a_difference_is_told(shipped: dict[str, list[Manifest]]) -> None:
    """The test above can fail: on a value, a missing field and a missing object."""
    ours = comparable(shipped["base"], 1)
    for kind, wrong in (("Deployment", {"spec": {"replicas": 2}}), ("NetworkPolicy", {"spec": {}}), ("Service", None)):
        assert list(apart(ours, {**ours, (kind, RELEASE): wrong}))
