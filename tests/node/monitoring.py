"""A real Prometheus with the shipped rules. It finds the pods by the shipped PodMonitor and ServiceMonitor, as under the operator."""

import json
import os
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path
from typing import Any, Self

import yaml

from tests.deploy.rendering import ROOT, Manifest
from tests.node.cluster import Cluster
from tests.processes import free_port, until

Json = dict[str, Any]
EXACT = "exact"
"""A second job over the same pods, a scrape a second: for counts. Its name is not that which the rules select."""
ASK = (
    "import sys, urllib.request as u; url, method = sys.argv[1:]; "
    "sys.stdout.write(u.urlopen(u.Request(url, method=method), timeout=30).read().decode())"
)
SNAKE = str.maketrans("./-", "___")


def relabelling(monitor: Manifest, port: str) -> list[Json]:
    """As the operator writes it for one endpoint of a PodMonitor: selector, port, labels of the pod, then the monitor's own."""
    selected = monitor["spec"]["selector"]["matchLabels"]
    rules: list[Json] = [
        {"source_labels": ["__meta_kubernetes_pod_phase"], "regex": "(Failed|Succeeded)", "action": "drop"},
        *(
            {
                "source_labels": [f"__meta_kubernetes_pod_label_{name.translate(SNAKE)}"],
                "regex": value,
                "action": "keep",
            }
            for name, value in selected.items()
        ),
        {"source_labels": ["__meta_kubernetes_pod_container_port_name"], "regex": port, "action": "keep"},
        *(
            {"source_labels": [f"__meta_kubernetes_{name}"], "target_label": label}
            for name, label in (("namespace", "namespace"), ("pod_container_name", "container"), ("pod_name", "pod"))
        ),
        *(
            {
                "source_labels": [f"__meta_kubernetes_pod_label_{name.translate(SNAKE)}"],
                "target_label": name.translate(SNAKE),
                "regex": "(.+)",
                "replacement": "$1",
            }
            for name in monitor["spec"].get("podTargetLabels", [])
        ),
    ]
    if job := monitor["spec"].get("jobLabel"):
        rules.append({"source_labels": [f"__meta_kubernetes_pod_label_{job.translate(SNAKE)}"], "target_label": "job"})
    (endpoint, *_) = monitor["spec"].get("podMetricsEndpoints") or monitor["spec"]["endpoints"]
    words = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    return rules + [
        {words.get(key, key): value for key, value in rule.items()} for rule in endpoint.get("relabelings", [])
    ]


class Prometheus:
    """In the own node's network, or where the tests run: pods of another cluster must be reachable from there by their addresses."""

    def __init__(self, cluster: Cluster, folder: Path, binary: Path) -> None:
        self._cluster, self._folder, self._binary = cluster, folder, binary
        self._jobs: list[Json] = []
        self._port = 9090 if cluster.own else free_port()  # the node's own network has ports of its own

    def job(self, namespace: str, monitor: Manifest, port: str, ca: Path | None = None) -> None:
        """Scrape what this monitor of that namespace selects, at its interval, and once a second for counts."""
        (endpoint, *_) = monitor["spec"].get("podMetricsEndpoints") or monitor["spec"]["endpoints"]
        discovery: Json = {
            "role": "pod",
            "namespaces": {"names": [namespace]},
            "kubeconfig_file": str(self._kubeconfig()),
        }
        secure = {"scheme": "https", "tls_config": {"ca_file": str(ca), "server_name": "llm-slo-prober"}} if ca else {}
        for name, interval in (("", endpoint["interval"]), (EXACT, "1s")):
            rules = relabelling(monitor, port) + ([{"target_label": "job", "replacement": EXACT}] if name else [])
            job = f"{namespace}/{monitor['metadata']['name']}/0{name}"
            if any(known["job_name"] == job for known in self._jobs):
                continue  # of another engine of the namespace
            self._jobs.append(
                {
                    "job_name": job,
                    "scrape_interval": interval,
                    "scrape_timeout": min(interval, "10s", key=lambda text: int(text[:-1])),
                    "kubernetes_sd_configs": [discovery],
                    "relabel_configs": rules,
                    **secure,
                }
            )
        self.reload()

    def reload(self) -> None:
        """Its configuration, and files that it names."""
        self._write()
        self._ask("/-/reload", "POST")

    def forget(self, namespace: str) -> None:
        """Scrape nothing of that namespace any more, as the operator does once its monitors are gone."""
        self._jobs = [job for job in self._jobs if not job["job_name"].startswith(f"{namespace}/")]
        self.reload()

    def _kubeconfig(self) -> Path:
        return self._cluster.own / "etc/admin.conf" if self._cluster.own else Path(os.environ["KUBECONFIG"])

    def _write(self) -> None:
        document = {
            "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
            "rule_files": [str(ROOT / "deploy/prometheus/rules.yaml")],
            "scrape_configs": self._jobs,
        }
        (self._folder / "prometheus.yml").write_text(yaml.safe_dump(document, sort_keys=False))

    def __enter__(self) -> Self:
        self._write()
        words = (
            f"--config.file={self._folder}/prometheus.yml",
            f"--storage.tsdb.path={self._folder}/tsdb",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--web.enable-lifecycle",
        )
        with (self._folder / "prometheus.log").open("ab") as log:
            self._process = subprocess.Popen([*self._cluster.inside, str(self._binary), *words], stdout=log, stderr=log)
        until(lambda: self.query("vector(1)"), "Prometheus")
        return self

    def __exit__(self, *_: object) -> None:
        self._ask("/-/quit", "POST")
        self._process.wait(60)

    def query(self, expression: str) -> list[Json]:
        """The result of an instant query. Raises OSError while there is none."""
        answer = self._ask("/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        return list(json.loads(answer)["data"]["result"])

    def _ask(self, path: str, method: str = "GET") -> str:
        command = [*self._cluster.inside, sys.executable, "-c", ASK, f"http://127.0.0.1:{self._port}{path}", method]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OSError(done.stderr.strip()[-500:])
        return done.stdout

    def increase(self, series: str, since: float) -> float:
        """How much the counters have grown since that Unix time, exactly: from sample to sample, a new series from 0, over restarts."""
        total = 0.0
        name, _, matchers = series.partition("{")
        window = f'{name}{{job="{EXACT}",{matchers or "}"}[{int(time.time() - since) + 2}s]'
        for found in self.query(window):
            before = 0.0
            for at, text in found["values"]:
                value = float(text)
                if at >= since:
                    total += value - before if value >= before else value
                before = value
        return total
