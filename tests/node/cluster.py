"""A cluster with nodes: that of node.sh (NODE_DIR) or any other (KUBECONFIG); its pods, their pages, the endpoints of a Service."""

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any, Self

from tests.deploy.rendering import ROOT, Manifest
from tests.processes import until

NODE = ROOT / "tests/node/node.sh"
Json = dict[str, Any]


class Cluster:
    """own: the folder of this test's own node, of which processes can be stopped; None for another cluster."""

    def __init__(self) -> None:
        folder = os.environ.get("NODE_DIR")
        self.own = Path(folder).resolve() if folder else None
        self.inside: list[str] = [str(NODE), "in", str(self.own)] if self.own else []
        server = self.get("--raw=/version")
        self.version = (int(server["major"]), int(server["minor"].rstrip("+")))
        self.release: str = server["gitVersion"]

    @property
    def native_sidecars(self) -> bool:
        return self.version >= (1, 29)

    def kubectl(self, *words: object, stdin: str | None = None, check: bool = True, timeout_s: float = 300) -> str:
        """What `kubectl words…` prints. Raises RuntimeError with its complaint."""
        done = subprocess.run(
            [*self.inside, "kubectl", *map(str, words)],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        if done.returncode and check:
            raise RuntimeError(f"kubectl {' '.join(map(str, words))}: {done.stderr.strip()}")
        return done.stdout

    def get(self, *words: object) -> Json:
        """`kubectl get`, as JSON."""
        raw = str(words[0]).startswith("--raw")
        return dict(json.loads(self.kubectl("get", *words, *([] if raw else ["--output=json"]))))

    def apply(self, manifests: list[Manifest], namespace: str) -> None:
        """All that the cluster knows: without the operator none of its kinds, and before 1.21 an older PodDisruptionBudget."""
        kept = [
            dict(manifest) for manifest in manifests if not manifest["apiVersion"].startswith("monitoring.coreos.com")
        ]
        if self.version < (1, 21):
            for manifest in kept:
                if manifest["kind"] == "PodDisruptionBudget":
                    manifest["apiVersion"] = "policy/v1beta1"
                    manifest["spec"] = {k: v for k, v in manifest["spec"].items() if k != "unhealthyPodEvictionPolicy"}
        self.kubectl(
            "apply",
            "--namespace",
            namespace,
            "--filename=-",
            stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": kept}),
        )

    def labelled(self, labels: str) -> list[str]:
        """Everything in the cluster that has these labels, of every kind that can be listed, as `kind.group/name`."""
        listed = set()
        for scope in (True, False):
            kinds = self.kubectl("api-resources", "--verbs=list", f"--namespaced={str(scope).lower()}", "--output=name")
            where = ["--all-namespaces"] if scope else []
            words = (",".join(kinds.split()), *where, f"--selector={labels}", "--output=name", "--ignore-not-found")
            listed |= set(self.kubectl("get", *words).split())
        return sorted(listed)

    def pods(self, namespace: str, labels: str) -> list[Json]:
        """Those that are not being deleted, oldest first."""
        found = self.get("pods", "--namespace", namespace, "--selector", labels)["items"]
        kept = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        return sorted(kept, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]))

    def page(self, namespace: str, pod: str, path: str, scheme: str = "http") -> str:
        """A page of the prober in a pod, through the API server. Raises OSError while there is none."""
        name = f"{scheme}:{pod}:9742" if scheme == "https" else f"{pod}:9742"
        try:
            return self.kubectl("get", f"--raw=/api/v1/namespaces/{namespace}/pods/{name}/proxy{path}", timeout_s=30)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            raise OSError(str(error)) from error

    def container(self, pod: Json, name: str) -> Json:
        """Its status, wherever Kubernetes lists it."""
        status = pod["status"]
        listed = status.get("containerStatuses", []) + status.get("initContainerStatuses", [])
        return dict(next(each for each in listed if each["name"] == name))

    def signal(self, namespace: str, pod: str, container: str, name: str) -> None:
        """To the first process of a container, from outside of it, where no signal is ignored. The own node only."""
        status = self.container(self.get("pod", pod, "--namespace", namespace), container)
        task = status["containerID"].removeprefix("containerd://")
        tasks = subprocess.run(
            [*self.inside, "ctr", "--namespace=k8s.io", "tasks", "list"], capture_output=True, text=True, check=True
        )
        (pid,) = (line.split()[1] for line in tasks.stdout.splitlines() if line.startswith(task))
        subprocess.run([*self.inside, "kill", f"-{name}", pid], check=True)

    def allow_writes(self, namespace: str, pod: str, volume: str, *, allowed: bool) -> None:
        """Whether the containers of a pod may write to an emptyDir of it, which is not in memory. The own node only."""
        uid = self.get("pod", pod, "--namespace", namespace)["metadata"]["uid"]
        folder = f"{self.own}/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/{volume}"
        subprocess.run([*self.inside, "chmod", "0777" if allowed else "0555", folder], check=True)

    def signal_api_server(self, name: str) -> None:
        """Its process id is that in the node's own namespace."""
        assert self.own
        pid = (self.own / "apiserver.pid").read_text().strip()
        subprocess.run([*self.inside, "kill", f"-{name}", pid], check=True)


class Endpoints:
    """The ready pods of a Service, followed as kube-proxy follows them.

    flaps: how often a pod left and came back, or nobody was left; both are what users of the Service would feel.
    """

    READY = r'jsonpath={range .subsets[*].addresses[*]}{.targetRef.name}{" "}{end}{"\n"}'

    def __init__(self, cluster: Cluster, namespace: str, service: str) -> None:
        command = [
            "kubectl",
            "get",
            "endpoints",
            service,
            f"--namespace={namespace}",
            "--watch",
            f"--output={self.READY}",
        ]
        self._command = [*cluster.inside, *command]
        self._ended = False
        self.seen: list[frozenset[str]] = []
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def _follow(self) -> None:
        """A watch that ends, as with the API server, is begun again."""
        while not self._ended:
            with subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
            ) as self._process:
                assert self._process.stdout
                for line in self._process.stdout:
                    ready = frozenset(line.split())
                    if not self.seen or self.seen[-1] != ready:
                        self.seen.append(ready)
            time.sleep(0.2)

    def __enter__(self) -> Self:
        self._thread.start()
        until(lambda: self.seen, "the endpoints")
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        os.killpg(self._process.pid, signal.SIGTERM)  # with what nsenter started
        self._thread.join(30)

    @property
    def flaps(self) -> int:
        left: set[str] = set()
        count, before = 0, frozenset[str]()
        for ready in self.seen:
            count += len(ready & left) + (not ready and bool(before))
            left = (left | before) - ready
            before = ready
        return count

    @property
    def ready(self) -> frozenset[str]:
        return self.seen[-1]
