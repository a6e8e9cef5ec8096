"""One scene: a namespace with an engine (`prober mock`) and the shipped sidecar beside it, what its users felt and what was counted."""

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from tests.deploy.rendering import KUSTOMIZE, Manifest, built
from tests.node.cluster import Cluster, Endpoints
from tests.node.monitoring import Prometheus
from tests.processes import until

Json = dict[str, Any]
CONTAINER = "llm-slo-prober"
CONFIG = """
defaults: {rate: 2/s, warmup: 0}
slos:
  ttft: {signal: ttft, threshold: 5s, objective: 99%}
  itl: {signal: itl, threshold: 1s, objective: 99%}
  success: {signal: success, objective: 99.5%}
workloads: {tiny: {prompt_tokens: 20, output_tokens: 8}}
targets:
  - {url: "http://127.0.0.1:8000", probes: [{workload: tiny}]}
"""
"""SLOs by the names that the shipped rules have, with thresholds that a busy machine does not miss."""
BROKEN = CONFIG.replace("99.5%", "995%")
# Refuses connections for so long, as vLLM does while it loads, and is then the mock engine.
LOADING = "import os, sys, time; time.sleep(float(sys.argv[1])); os.execvp('python', ['python', '-m', 'prober', 'mock', *sys.argv[2:]])"
MOCK = ("--host=0.0.0.0", "--port=8000", "--ttft=20ms", "--itl=1ms")


def mock_engine(app: str, replicas: int = 1, loads_s: float = 0, labels: Mapping[str, str] | None = None) -> Manifest:
    """A Deployment as people have one. It is ready once it answers. labels: further ones of its pods."""
    container: Json = {
        "name": "engine",
        "image": os.environ["NODE_IMAGE"],
        "command": ["python", "-c", LOADING, str(loads_s)],
        "args": list(MOCK),
        "env": [{"name": "RELEASE", "value": "1"}],
        "ports": [{"name": "http", "containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 1, "timeoutSeconds": 5},
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": app, "labels": {"app": app, "llm-slo-prober/sidecar": "true"}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": app}},
            "template": {"metadata": {"labels": {"app": app, **(labels or {})}}, "spec": {"containers": [container]}},
        },
    }


def service(app: str) -> Manifest:
    """Whose endpoints are followed."""
    spec = {"selector": {"app": app}, "ports": [{"port": 8000, "targetPort": "http"}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": app}, "spec": spec}


def image() -> Json:
    """For `images:` of a kustomization."""
    name, _, tag = os.environ["NODE_IMAGE"].rpartition(":")
    return {"name": "llm-slo-prober", "newName": name, "newTag": tag}


def rendered(folder: Path, kustomization: Json, **files: str) -> list[Manifest]:
    """A kustomization of a user, with these files beside it; `…/` in its paths is deploy/kustomize."""
    folder.mkdir(parents=True, exist_ok=True)
    head = {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "images": [image()]}
    text = json.dumps({**head, **kustomization}, ensure_ascii=False)
    (folder / "kustomization.yaml").write_text(text.replace("…/", os.path.relpath(KUSTOMIZE, folder.resolve()) + "/"))
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(content)
    return built(Path(str(shutil.which("kubectl"))), folder)


class Scene:
    """Made and removed with the `with` block; `since`: Unix time from which its events are counted."""

    def __init__(self, cluster: Cluster, prometheus: Prometheus, folder: Path, name: str) -> None:
        self.cluster, self.prometheus, self.folder = cluster, prometheus, folder
        self.namespace = f"prober-{name}"
        self.since = time.time()

    def __enter__(self) -> Self:
        self.cluster.kubectl("create", "namespace", self.namespace)
        return self

    def __exit__(self, *_: object) -> None:
        self.prometheus.forget(self.namespace)
        self.cluster.kubectl("delete", "namespace", self.namespace, "--wait=false")

    def deploy(self, app: str = "llama", replicas: int = 1, loads_s: float = 0, config: str = CONFIG) -> None:
        """The engine with the sidecar, scraped by the PodMonitor. With an empty `config` there is no ConfigMap of its name."""
        name = f"{app}-prober"
        sidecar = "sidecar" if self.cluster.native_sidecars else "sidecar-classic"
        kustomization: Json = {
            "resources": ["engine.yaml"],
            "components": [f"…/components/{sidecar}", "…/components/prometheus-operator/podmonitor"],
            "configMapGenerator": [
                {"name": name, "files": ["prober.yaml"], "options": {"disableNameSuffixHash": True}}
            ],
        }
        files = {
            "engine": json.dumps(
                {"apiVersion": "v1", "kind": "List", "items": [mock_engine(app, replicas, loads_s), service(app)]}
            ),
            "prober": config,
        }
        manifests = rendered(self.folder / app, kustomization, **files)
        self.cluster.apply([each for each in manifests if config or each["kind"] != "ConfigMap"], self.namespace)
        self.prometheus.job(self.namespace, next(each for each in manifests if each["kind"] == "PodMonitor"), CONTAINER)

    def volumes(self, count: int) -> None:
        """Persistent volumes for claims of this namespace, on a node where nothing provides them."""
        if self.cluster.own is None:
            return
        for number in range(count):
            folder = self.cluster.own / f"volumes/{self.namespace}-{number}"
            folder.mkdir(parents=True)
            os.chown(folder, 65532, 65532)
            spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": str(folder)}}
            volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": folder.name}, "spec": spec}
            self.cluster.apply([volume], self.namespace)

    def remove(self, app: str) -> None:
        """Delete what the kustomization of an engine has, but for the PodMonitor, which is of the whole namespace."""
        for kind, name in (("deployment", app), ("service", app), ("configmap", f"{app}-prober")):
            self.kubectl("delete", kind, name)

    def configure(self, text: str, app: str = "llama") -> None:
        """Change the ConfigMap."""
        patch = json.dumps({"data": {"prober.yaml": text}})
        self.kubectl("patch", "configmap", f"{app}-prober", f"--patch={patch}")

    def restart(self, deployment: str = "llama") -> None:
        """Replace its pods by new ones, to the end."""
        self.kubectl("rollout", "restart", f"deployment/{deployment}")
        self.kubectl("rollout", "status", f"deployment/{deployment}", "--timeout=300s")

    def kubectl(self, *words: object) -> str:
        return self.cluster.kubectl(words[0], f"--namespace={self.namespace}", *words[1:])

    def pods(self, app: str = "llama") -> list[Json]:
        return self.cluster.pods(self.namespace, f"app={app}")

    def pod(self, app: str = "llama") -> str:
        """The name of the oldest."""
        return str(self.pods(app)[0]["metadata"]["name"])

    def restarts(self, container: str, app: str = "llama") -> int:
        return sum(int(self.cluster.container(pod, container)["restartCount"]) for pod in self.pods(app))

    def page(self, pod: str, path: str) -> str:
        return self.cluster.page(self.namespace, pod, path)

    def value(self, name: str, pod: str = "", **labels: str) -> float:
        """The sum of these samples on the page of one pod. Raises OSError while there is no page."""
        page = self.page(pod or self.pod(), "/metrics")
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def until_probed(self, more: int = 20, pod: str = "", seconds: float = 180) -> None:
        """That many further successes."""
        start = 0.0

        def successes() -> float:
            return self.value("llmslo_ttft_seconds_count", pod)

        def answers() -> bool:
            nonlocal start
            start = successes()
            return True

        until(answers, "the sidecar's page", seconds)
        until(lambda: successes() >= start + more, f"{more} probes", seconds)

    @contextmanager
    def endpoints(self, app: str = "llama", ready: int = 1) -> Iterator[Endpoints]:
        """Followed from when so many are ready."""
        with Endpoints(self.cluster, self.namespace, app) as followed:
            until(lambda: len(followed.ready) == ready, f"{ready} ready endpoints", 300)
            yield followed

    def bad(self, since: float | None = None) -> float:
        """Bad events of all SLOs, as a scrape a second saw them."""
        time.sleep(2)
        return self.prometheus.increase(
            f'llmslo_slo_bad_events_total{{namespace="{self.namespace}"}}', since or self.since
        )

    def events(self, since: float | None = None) -> float:
        """All events, so that no bad ones means something."""
        return self.prometheus.increase(f'llmslo_slo_events_total{{namespace="{self.namespace}"}}', since or self.since)
