"""The chart as a release of real Helm in a scene's namespace, and the names by which its test finds the Service."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.deploy.rendering import CHART, FULLNAME, RELEASE, ROOT
from tests.node.cluster import Cluster

HELM = ROOT / ".tools/usr/bin/helm"


class Release:
    """The release. folder: for Helm's own files and a copy of the chart."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self._cluster, self._namespace, self._folder = cluster, namespace, folder

    def chart(self) -> Path:
        """The shipped chart; for Kubernetes before 1.21 a copy that it admits, with the PodDisruptionBudget of its time."""
        if self._cluster.version >= (1, 21):
            return CHART
        copy = self._folder / "chart"
        shutil.copytree(CHART, copy)
        for path, now, then in (
            ("Chart.yaml", 'kubeVersion: ">=1.21.0-0"', 'kubeVersion: ">=1.20.0-0"'),
            ("templates/poddisruptionbudget.yaml", "apiVersion: policy/v1\n", "apiVersion: policy/v1beta1\n"),
        ):
            text = (copy / path).read_text()
            assert now in text, path
            (copy / path).write_text(text.replace(now, then))
        return copy

    def install(self, values: object) -> None:
        """Returns once the prober is ready."""
        path = self._folder / "values.json"
        path.write_text(json.dumps(values))
        self._helm("install", RELEASE, self.chart(), f"--values={path}", "--wait", "--timeout=180s")

    def test(self) -> str:
        """What `helm test` prints, then the log of its Job, as docs/kubernetes.md says. Raises RuntimeError if the test fails."""
        told = self._helm("test", RELEASE, "--timeout=240s")
        return told + self._cluster.kubectl("logs", f"--namespace={self._namespace}", f"job/{FULLNAME}-test")

    def uninstall(self) -> None:
        self._helm("uninstall", RELEASE, "--wait")

    def _helm(self, *words: object) -> str:
        homes = {f"HELM_{name}_HOME": str(self._folder / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        command = [*self._cluster.inside, str(HELM), f"--namespace={self._namespace}", *map(str, words)]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=300, env={**os.environ, **homes}
        )
        if done.returncode:
            raise RuntimeError(f"helm {words[0]}: {done.stdout}\n{done.stderr}")
        return done.stdout


@contextmanager
def resolving(cluster: Cluster, file: Path) -> Iterator[None]:
    """The own node's pods resolve the names in the file meanwhile; another cluster has its own DNS."""
    if cluster.own is None:
        yield
        return
    (node,) = cluster.get("nodes")["items"]
    (address,) = (each["address"] for each in node["status"]["addresses"] if each["type"] == "InternalIP")
    command = [*cluster.inside, sys.executable, "-m", "tests.node.names", address, str(file)]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as server:
        try:
            yield
        finally:
            os.killpg(server.pid, signal.SIGTERM)  # with what nsenter started
