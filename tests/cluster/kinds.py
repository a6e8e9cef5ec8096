"""What a server does not have by itself: the kinds of other projects, from the fields that are used, and those newer than it."""

import copy
from typing import Any

from tests.deploy.rendering import Manifest
from tests.deploy.schemas import SPECS

Json = dict[str, Any]
# PodSecurity's `restricted` in the words that there were before it; a pod that has to be changed to fit is told by its own test.
POLICY: Json = {
    "apiVersion": "policy/v1beta1",
    "kind": "PodSecurityPolicy",
    "metadata": {
        "name": "restricted",
        "annotations": {
            f"seccomp.security.alpha.kubernetes.io/{name}": "runtime/default"
            for name in (
                "allowedProfileNames",
                "defaultProfileName",
            )  # the latter, as it looks at pods and not at containers
        },
    },
    "spec": {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "requiredDropCapabilities": ["ALL"],
        "volumes": ["configMap", "emptyDir", "projected", "secret", "downwardAPI", "persistentVolumeClaim"],
        "runAsUser": {"rule": "MustRunAsNonRoot"},
        "seLinux": {"rule": "RunAsAny"},
        "supplementalGroups": {"rule": "RunAsAny"},
        "fsGroup": {"rule": "RunAsAny"},
    },
}


def structural(schema: Json) -> Json:
    """A JSON schema as a CRD has to have it: fields that are not named are taken away instead of refused."""
    if "enum" in schema:
        return {"type": "string", "enum": schema["enum"]}
    kept: Json = {key: schema[key] for key in ("type", "required", "pattern", "minLength", "minItems") if key in schema}
    if "properties" in schema:
        return {**kept, "properties": {name: structural(each) for name, each in schema["properties"].items()}}
    if isinstance(schema.get("additionalProperties"), dict):
        return {**kept, "additionalProperties": schema["additionalProperties"]}
    if "items" in schema:
        return {**kept, "items": structural(schema["items"])}
    return {**kept, "x-kubernetes-preserve-unknown-fields": True} if kept["type"] == "object" else kept


def definition(group: str, version: str, kind: str, plural: str, schema: Json, approval: str = "") -> Json:
    """The CRD of one kind."""
    of_version = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": approval}},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [of_version],
        },
    }


def definitions(release: tuple[int, int]) -> list[Json]:
    """All that are needed; EndpointSlices of `v1`, which are Kubernetes's own from 1.21 on, with any content."""
    found = []
    for (api, kind), spec in SPECS.items():
        group, _, version = api.partition("/")
        schema = {"type": "object", "properties": {"spec": structural(spec)}}
        found.append(definition(group, version, kind, f"{kind.lower()}s", schema))
    if release < (1, 21):
        anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        approval = "unapproved, a stand-in for the real one"  # asked for in Kubernetes's own groups
        found.append(definition("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", anything, approval))
    return found


def as_of(manifest: Manifest, release: tuple[int, int]) -> Manifest:
    """Without what a server of that release did not have yet; unchanged for one of 1.28 or later."""
    older = copy.deepcopy(manifest)
    spec = older.get("spec", {})
    if manifest["kind"] == "PodDisruptionBudget":
        if release < (1, 21):
            older["apiVersion"] = "policy/v1beta1"
        if release < (1, 26):
            spec.pop("unhealthyPodEvictionPolicy", None)  # Helm leaves it out by itself
    if manifest["kind"] == "Secret":
        older["data"] = {name: "".join(text.split()) for name, text in manifest["data"].items()}  # kustomize folds it
    if manifest["kind"] == "Job" and release < (1, 23):
        del spec["ttlSecondsAfterFinished"]
    if release < (1, 28):
        pod = spec.get("template", {}).get("spec", {})
        for container in pod.pop("initContainers", ()):  # a native sidecar as one that is none
            del container["restartPolicy"]
            pod["containers"].append(container)
    return older
