"""Every set of manifests that a reader could apply, and where in one to look."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.rendering import CHART, KUSTOMIZE, MINIMAL, ROOT, Manifest, built, chart, documents, merged

MONITORING, RULES = "overlays/sidecars-monitoring", "overlays/rules"  # without a prober of their own
OVERLAYS = [
    "base",
    *(
        f"overlays/{path.name}"
        for path in sorted((KUSTOMIZE / "overlays").iterdir())
        if path.name not in MONITORING + RULES
    ),
]
FULL: dict[str, Any] = {
    "persistence": {"enabled": True, "storageClassName": "fast"},
    "extraSecretMounts": [{"name": "token", "secretName": "llm-token", "mountPath": "/var/run/secrets/llm"}],
    "extraVolumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}],
    "extraVolumeMounts": [{"name": "scratch", "mountPath": "/var/lib/scratch"}],
    "extraEnv": [{"name": "ENGINE_KEY", "valueFrom": {"secretKeyRef": {"name": "engine", "key": "api-key"}}}],
    "extraArgs": ["--web.enable-admin-api"],
    "web": {"externalUrl": "https://prober.example/slo/", "configSecret": "prober-web", "tlsSecret": "prober-tls"},
    "networkPolicy": {"egress": [{"to": [{"ipBlock": {"cidr": "198.51.100.0/24"}}], "ports": [{"port": 8000}]}]},
    "serviceMonitor": {
        "enabled": True,
        "labels": {"release": "stack"},
        "basicAuthSecret": "prober-reader",
        "scrapeTimeout": "10s",
        "relabelings": [{"targetLabel": "cluster", "replacement": "eu"}],
        "metricRelabelings": [{"action": "drop", "sourceLabels": ["__name__"], "regex": "llmslo_chunk_gap_seconds.*"}],
        "scrapeNativeHistograms": True,
        "scrapeClassicHistograms": True,
    },
    "podMonitor": {
        "enabled": True,
        "namespaceSelector": {"any": True},
        "relabelings": [{"targetLabel": "cluster", "replacement": "eu"}],
        "convertClassicHistogramsToNHCB": True,
    },
    "probe": {"enabled": True, "targets": ["llama"], "labels": {"release": "stack"}},
    "prometheusRule": {"enabled": True, "rules": "groups: [{name: of-mine, rules: [{record: 'a:b:c', expr: up}]}]\n"},
    "dashboards": {"enabled": True},
    "image": {"repository": "registry.example/llm-slo-prober", "digest": "sha256:" + "0" * 64},
    "imagePullSecrets": [{"name": "registry"}],
    "priorityClassName": "high",
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "DoesNotExist"}]}]
            }
        }
    },
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "commonLabels": {"app.kubernetes.io/part-of": "inference"},
    "podLabels": {"team": "inference"},
    "podAnnotations": {"sidecar.istio.io/inject": "false"},
    "resources": {"limits": {"cpu": "100m"}},
    "service": {"type": "NodePort", "port": 80, "annotations": {"a.example/b": "c"}, "labels": {"team": "inference"}},
    "serviceAccount": {"annotations": {"a.example/role": "reader"}, "labels": {"team": "inference"}},
}
# Four probers with a share each, which find their targets; pages over TLS.
SHARDED: dict[str, Any] = {
    "replicas": 4,
    "vantage": "eu-west-1",
    "persistence": {"enabled": True, "storageClassName": "fast"},
    "config": {
        "targets": None,
        "discovery": [
            {"kubernetes": {"namespaces": ["llm", "research"], "label_selector": "llm-slo-prober/target=true"}}
        ],
    },
    "discovery": {"namespaces": ["llm", "research"]},
    "web": {"configSecret": "prober-web", "tlsSecret": "prober-tls"},
    "serviceMonitor": {"enabled": True, "basicAuthSecret": "prober-reader"},
}
# Prometheus's and Grafana's objects are in their namespaces; a volume, a port and environment variables are of the platform's own.
ELSEWHERE: dict[str, Any] = {
    "serviceMonitor": {"enabled": True, "namespace": "monitoring"},
    "podMonitor": {"enabled": True, "namespace": "monitoring"},
    "probe": {"enabled": True, "namespace": "monitoring", "targets": ["llama"]},
    "prometheusRule": {"enabled": True, "namespace": "monitoring", "rules": FULL["prometheusRule"]["rules"]},
    "dashboards": {"enabled": True, "namespace": "grafana"},
    "persistence": {"enabled": True, "existingClaim": "learnt"},
    "annotations": {"reloader.example/auto": "true"},
    "extraEnvFrom": [
        {"secretRef": {"name": "engine-keys"}},
        {"prefix": "PROXY_", "configMapRef": {"name": "proxy", "optional": True}},
    ],
    "podDisruptionBudget": {"maxUnavailable": "50%"},
    "service": {"type": "NodePort", "nodePort": 30742},
    "networkPolicy": {"ingress": [{"from": [{"ipBlock": {"cidr": "198.51.100.0/24"}}]}]},
}
AUTOPILOT: dict[str, Any] = yaml.safe_load((CHART / "values-autopilot.yaml").read_text())


def overlay(name: str) -> Any:
    """The prober.yaml of the overlay, as values of the chart."""
    return {"targets": None} | yaml.safe_load((KUSTOMIZE / "overlays" / name / "prober.yaml").read_text())


OPERATED: dict[str, Any] = {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}
# The chart's counterparts of overlays.
COUNTERPARTS: dict[str, dict[str, Any]] = {
    "overlays/fleet": OPERATED
    | {
        "config": overlay("fleet"),
        "replicas": 3,
        "persistence": {"enabled": True},
        "discovery": {"namespaces": ["llm"]},
        "web": {"configSecret": "llm-slo-prober-web", "tlsSecret": "llm-slo-prober-tls"},
    },
    "overlays/vllm-production-stack": OPERATED
    | {
        "config": overlay("vllm-production-stack"),
        "persistence": {"enabled": True},
        "probe": {"enabled": True, "targets": ["vllm-router"]},
        "dashboards": {"enabled": True},
    },
}
CHARTS: dict[str, dict[str, Any]] = {
    name: merged(MINIMAL, over)
    for name, over in {
        **{"chart": {}, "chart, everything on": FULL, "chart, sharded": SHARDED},
        **{"chart, observed elsewhere": ELSEWHERE, "chart, autopilot": AUTOPILOT},
        **{f"chart, as {name}": values for name, values in COUNTERPARTS.items()},
    }.items()
}
# With a prober of its own, not beside an engine.
STANDALONE = ("base", "overlays/fleet", "overlays/vllm-production-stack", *CHARTS)


@cache
def rollouts() -> tuple[Manifest, ...]:
    return tuple(
        document
        for path in sorted((ROOT / "deploy/rollouts").glob("*.yaml"))
        for document in documents(path.read_text())
    )


def autoscalers() -> list[Manifest]:
    """By KEDA, and without it."""
    files = (ROOT / "deploy/autoscaling" / name for name in ("scaledobject.yaml", "hpa.yaml"))
    return [document for path in files for document in documents(path.read_text())]


def sets(kubectl: Path) -> dict[str, list[Manifest]]:
    """All of them, by where they come from."""
    return {
        **{name: built(kubectl, KUSTOMIZE / name) for name in (*OVERLAYS, MONITORING, RULES)},
        **{name: chart(**over) for name, over in CHARTS.items()},
        "rollouts": list(rollouts()),
        "autoscaling": autoscalers(),
        "scrapeconfig": documents(
            (KUSTOMIZE / "components/prometheus-operator/scrapeconfig/scrapeconfig.yaml").read_text()
        ),
    }


def one(manifests: list[Manifest], kind: str) -> Manifest:
    (manifest_,) = (manifest for manifest in manifests if manifest["kind"] == kind)
    return manifest_


def workload(manifests: list[Manifest]) -> Manifest:
    """The Deployment or StatefulSet of the prober."""
    (manifest_,) = (manifest for manifest in manifests if manifest["kind"] in ("Deployment", "StatefulSet"))
    return manifest_


def flag(container: dict[str, Any], name: str) -> str | None:
    """The value of an argument, None without it."""
    return next((word.partition("=")[2] for word in container["args"] if word.startswith(f"--{name}=")), None)


def configuration(manifests: list[Manifest]) -> dict[str, Any]:
    """Its prober.yaml; empty in a set without one."""
    texts = [text for manifest in manifests if (text := manifest.get("data", {}).get("prober.yaml"))]
    return dict(yaml.safe_load(*texts)) if texts else {}


def discovering(manifests: list[Manifest]) -> bool:
    """Whether its configuration has targets that are found through the API server."""
    return any("kubernetes" in discovery for discovery in configuration(manifests).get("discovery") or ())
