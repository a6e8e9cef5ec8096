"""The shipped fleet (overlays/fleet): three shards that discover engines by their label, over TLS, with leases."""

import json
import time
from pathlib import Path
from typing import Any

import trustme

from tests.deploy.rendering import Manifest
from tests.node.cluster import Cluster
from tests.node.monitoring import Prometheus
from tests.node.scene import Scene, mock_engine, rendered
from tests.processes import until

Json = dict[str, Any]
PROBER = "app.kubernetes.io/name=llm-slo-prober"
ENGINES = 4
"""More than shards, so that one shard has two targets."""
TOKEN_S = 600
"""Life of the probers' token, the shortest that Kubernetes gives; the kubelet renews it after four fifths."""
FLEET = """
slos:
  ttft: {signal: ttft, threshold: 5s, objective: 99%}
  itl: {signal: itl, threshold: 1s, objective: 99%}
  success: {signal: success, objective: 99.5%}
workloads: {tiny: {prompt_tokens: 20, output_tokens: 8}}
discovery:
  - kubernetes: {role: pod, label_selector: llm-slo-prober/target=true}
    target: {rate: 1/s, warmup: 0, probes: [{workload: tiny}]}
"""


def sweeping(at_unix_s: float) -> str:
    """All targets are swept in that minute and, within a day, never again."""
    cron = time.strftime("%M %H * * *", time.gmtime(at_unix_s))
    sweep = (
        f"sweep: {{schedule: '{cron}', spread: 0s, min_gap: 1m, mode: grid, rates: [1/s], step: 60s, workload: tiny}}"
    )
    return FLEET.replace("probes:", f"{sweep}, probes:")


class Fleet(Scene):
    """All scenes of the fleet play in it, one after the other; each counts from its own start."""

    def __init__(self, cluster: Cluster, prometheus: Prometheus, folder: Path) -> None:
        super().__init__(cluster, prometheus, folder, "fleet")
        self.ca = self.folder / "ca.crt"

    def start(self) -> None:
        """Returns once all shards are ready and all engines are probed."""
        self.cluster.apply([self.new_certificate()], self.namespace)
        self.scale(ENGINES)
        manifests = rendered(
            self.folder / "fleet",
            {
                "namespace": self.namespace,
                "resources": ["…/overlays/fleet"],
                "configMapGenerator": [{"name": "llm-slo-prober", "behavior": "replace", "files": ["prober.yaml"]}],
                "patches": [{"target": {"kind": "StatefulSet"}, "patch": json.dumps(short_token())}],
            },
            prober=FLEET,
        )
        self.volumes(3)
        self.cluster.apply(manifests, self.namespace)
        monitor = next(each for each in manifests if each["kind"] == "ServiceMonitor")
        until(lambda: len(self.probers()) == 3, "three probers", 120)
        until(
            lambda: sum(self.targets(pod) for pod in self.probers()) == ENGINES, "every engine probed by one shard", 300
        )
        self.prometheus.job(self.namespace, monitor, "http", self.ca)

    def probers(self) -> list[str]:
        return [str(pod["metadata"]["name"]) for pod in self.cluster.pods(self.namespace, PROBER)]

    def targets(self, pod: str) -> float:
        """How many this shard probes, and has had an answer of."""
        return self.value("llmslo_target_state", pod, state="ready")

    def scale(self, engines: int) -> None:
        self.cluster.apply([mock_engine("engine", engines, labels={"llm-slo-prober/target": "true"})], self.namespace)

    def restarts(self, container: str = "llm-slo-prober", app: str = "") -> int:
        pods = self.cluster.pods(self.namespace, PROBER)
        return sum(int(self.cluster.container(pod, container)["restartCount"]) for pod in pods)

    def new_certificate(self) -> Manifest:
        """The Secret for the fleet's pages with a certificate of a new authority, which Prometheus trusts from now on, and no other."""
        authority = trustme.CA()
        leaf = authority.issue_cert("llm-slo-prober")
        authority.cert_pem.write_to_path(self.ca)
        data = {
            "tls.crt": b"".join(part.bytes() for part in leaf.cert_chain_pems).decode(),
            "tls.key": leaf.private_key_pem.bytes().decode(),
            "ca.crt": self.ca.read_text(),
        }
        return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "llm-slo-prober-tls"}, "stringData": data}

    def configure(self, text: str, app: str = "llm-slo-prober") -> None:
        self.kubectl("patch", "configmap", app, f"--patch={json.dumps({'data': {'prober.yaml': text}})}")

    def page(self, pod: str, path: str) -> str:
        return self.cluster.page(self.namespace, pod, path, "https")


def short_token() -> list[Json]:
    """The token as newer releases mount it by themselves, but renewed within the time of the test."""
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_S}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    mount = {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": True}
    pod = "/spec/template/spec"
    return [
        {"op": "replace", "path": f"{pod}/automountServiceAccountToken", "value": False},
        {"op": "add", "path": f"{pod}/volumes/-", "value": {"name": "token", "projected": {"sources": sources}}},
        {"op": "add", "path": f"{pod}/containers/0/volumeMounts/-", "value": mount},
    ]
