"""A real API server with its etcd, on loopback: roles are enforced, tokens are issued, pods are admitted, and nothing runs them.

No controller and no kubelet: a Deployment has no pods here, and a pod stays as it was made.
"""

import base64
import json
import secrets
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.processes import free_port, until

Json = dict[str, Any]
UNCACHED = "podtemplates"
"""Whose watches are etcd's own, and end where that has forgotten; others' past is kept by the API server for a while."""
PATCH = "application/strategic-merge-patch+json"
SERVICE_ACCOUNTS = "system:serviceaccount"


class Server:
    """Killed with the `with` block. ca: file of who vouches for it; admin: token that may all; kubeconfig: a file with it."""

    def __init__(self, apiserver: Path, etcd: Path, folder: Path) -> None:
        self._programs, self._folder = (etcd, apiserver), folder
        said = subprocess.run([apiserver, "--version"], capture_output=True, text=True, check=True).stdout
        major, minor, *_ = said.split()[1].removeprefix("v").split(".")
        self.version = (int(major), int(minor))
        self.url = f"https://127.0.0.1:{free_port()}"
        self.ca, self.kubeconfig = folder / "certificates/apiserver.crt", folder / "kubeconfig"
        self.admin = secrets.token_hex(16)
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        folder, (etcd, apiserver) = self._folder, self._programs
        self._store, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        store = self._store
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        (folder / "accounts.key").write_bytes(key)
        (folder / "tokens.csv").write_text(f"{self.admin},admin,admin,system:masters\n")
        try:
            self._start(
                etcd,
                f"--data-dir={folder / 'etcd'}",
                f"--listen-client-urls={store}",
                f"--advertise-client-urls={store}",
                f"--listen-peer-urls={peers}",
                f"--initial-advertise-peer-urls={peers}",
                f"--initial-cluster=default={peers}",
            )
            self._start(
                apiserver,
                f"--etcd-servers={store}",
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                f"--secure-port={self.url.rpartition(':')[2]}",
                f"--cert-dir={self.ca.parent}",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--endpoint-reconciler-type=none",
                "--authorization-mode=RBAC",
                f"--token-auth-file={folder / 'tokens.csv'}",
                f"--watch-cache-sizes={UNCACHED}#0",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={folder / 'accounts.key'}",
                f"--service-account-signing-key-file={folder / 'accounts.key'}",
                *self._of_old(),
            )
            until(self._ready, f"the API server; {folder / 'kube-apiserver.log'} says more")
        except BaseException:
            self.__exit__()
            raise
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "real", "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}],
            "users": [{"name": "admin", "user": {"token": self.admin}}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": "admin"}}],
            "current-context": "real",
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._running):
            process.kill()
            process.wait(10)

    def _of_old(self) -> list[str]:
        """What newer ones do by themselves: bound tokens from 1.22, PodSecurity from 1.23; and room for EndpointSlices of `v1`."""
        if self.version >= (1, 25):
            return []
        flags = ["--feature-gates=BoundServiceAccountTokenVolume=true", "--enable-admission-plugins=PodSecurityPolicy"]
        return flags + ["--runtime-config=discovery.k8s.io/v1beta1=false"] * (self.version < (1, 21))

    def _start(self, program: Path, *flags: str) -> None:
        with (self._folder / f"{program.name}.log").open("wb") as log:
            self._running.append(subprocess.Popen([program, *flags], stdout=log, stderr=log))

    def _ready(self) -> bool:
        assert all(process.poll() is None for process in self._running), f"it ended; see {self._folder}"
        return self.ca.exists() and self.ask("GET", "/readyz")[0] == 200

    def ask(
        self, method: str, path: str, body: Json | None = None, *, token: str = "", kind: str = "application/json"
    ) -> tuple[int, Json]:
        """Status and answer, as the administrator or whoever has the token. Raises OSError without one."""
        headers = {"Authorization": f"Bearer {token or self.admin}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(
                request, timeout=20, context=ssl.create_default_context(cafile=self.ca)
            ) as answer:
                return answer.status, _document(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _document(error.read())

    def made(self, path: str, body: Json) -> Json:
        """A new object of that collection, as it is kept."""
        status, kept = self.ask("POST", path, body)
        assert status == 201, kept
        return kept

    def forget(self) -> None:
        """Have etcd drop everything before now, as it does every five minutes."""
        now = self._told("range", {"key": base64.b64encode(b"/").decode()})["header"]["revision"]
        self._told("compaction", {"revision": now, "physical": True})

    def _told(self, what: str, body: Json) -> Json:
        request = urllib.request.Request(f"{self._store}/v3/kv/{what}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=20) as answer:
            return _document(answer.read())

    def namespace(self, name: str) -> str:
        """A new one, in which pods have to be as PodSecurity's `restricted` says."""
        labels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
        self.made("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        return name

    def token(self, namespace: str, account: str) -> str:
        """A token of a service account, as a pod is given one."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        return str(self.made(path, body)["status"]["token"])

    def may(
        self, account: tuple[str, str], namespace: str, verb: str, group: str, resource: str, name: str = ""
    ) -> bool:
        """What `kubectl auth can-i --as` asks: whether the service account (namespace, name) is allowed to."""
        resource, _, part = resource.partition("/")
        wanted = {
            **{"namespace": namespace, "verb": verb, "group": group, "resource": resource},
            **{"subresource": part, "name": name},
        }
        spec = {
            "user": f"{SERVICE_ACCOUNTS}:{account[0]}:{account[1]}",
            "groups": [f"{SERVICE_ACCOUNTS}s", f"{SERVICE_ACCOUNTS}s:{account[0]}", "system:authenticated"],
            "resourceAttributes": wanted,
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        return bool(self.made("/apis/authorization.k8s.io/v1/subjectaccessreviews", body)["status"]["allowed"])


def _document(text: bytes) -> Json:
    try:
        found = json.loads(text)
    except ValueError:
        return {"message": text.decode(errors="replace")}
    return found if isinstance(found, dict) else {"message": found}
