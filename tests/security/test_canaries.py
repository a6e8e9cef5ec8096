"""Secrets planted in every place that can carry one, and looked for in everything that the prober says, in any form."""

import base64
import http.client
import json
import os
import secrets
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import bcrypt
import pytest
import trustme
import yaml

from tests.commands import prober
from tests.processes import HANG_S, free_port, until
from tests.security.echo import MODES, Echo

FORMS = ("text/plain", "application/openmetrics-text; version=1.0.0",
         "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited")  # fmt: skip
SENT = ("token", "rotated", "header", "authorization", "proxy", "grafana", "prometheus", "page", "environment", "cookie",
        "tunnel", "inventory", "ask", "apiserver", "lease", "found", "found_key")  # fmt: skip
NEVER_SENT = ("password", "misplaced", "unsaid", "client_key", "server_key", "hash")
VARIABLES = {"GRAFANA_TOKEN": "environment", "COOKIE": "cookie", "TUNNEL": "tunnel"}
FAILED = (b"its Content-Type is", b"unknown key", b"has a value that is no text", b"/list?\xe2\x80\xa6: HTTP 401", b"HTTP 401 ",
          b"HTTP 500 ", b"an event of type", b"not an event", b"probing continues: HTTP 403", b"not a Lease")  # fmt: skip


class Canaries:
    """A secret per place; `in_` returns those that a text contains in any form."""

    def __init__(self) -> None:
        self.of = {place: f"{place}+{secrets.token_hex(12)}/" for place in SENT + NEVER_SENT}

    def keep(self, place: str, secret: str) -> None:
        self.of[place] = secret

    def in_(self, text: bytes) -> list[str]:
        return [place for place, secret in self.of.items() if any(form in text for form in self._forms(secret))]

    def _forms(self, secret: str) -> Iterator[bytes]:
        core = secret.split("+")[-1].rstrip("/")  # what of it is random
        yield core[: len(core) * 2 // 3].encode()
        yield quote(secret, safe="").encode()
        for shift in range(3):  # in base64, wherever it begins in what was encoded
            encoded = base64.b64encode(b"x" * shift + core.encode())
            yield encoded[4 : len(encoded) * 2 // 3]
        yield core.encode().hex().encode()


class Leaks:
    """All that was said, by its source."""

    def __init__(self, canaries: Canaries) -> None:
        self._canaries = canaries
        self.places: dict[str, list[str]] = {}
        self.sources = 0

    def add(self, source: str, text: bytes | str) -> None:
        self.sources += 1
        if leaked := self._canaries.in_(text.encode() if isinstance(text, str) else text):
            self.places[source] = leaked

    def files(self, folder: Path) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                self.add(str(path), path.read_bytes())


@pytest.fixture
def canaries() -> Canaries:
    return Canaries()


def test_the_search_finds_each_form(canaries: Canaries) -> None:
    """A test that finds nothing must be able to."""
    secret = canaries.of["token"]
    for text in (secret, quote(secret, safe=""), base64.b64encode(f"user:{secret}".encode()).decode(), secret[:-8]):
        assert canaries.in_(f"before {text} after".encode()) == ["token"]
    assert canaries.in_(b"nothing") == []


def certificate(folder: Path, name: str, canaries: Canaries, authority: trustme.CA) -> tuple[str, str]:
    issued = authority.issue_cert("127.0.0.1")
    (folder / f"{name}.pem").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    (folder / f"{name}.key").write_bytes(issued.private_key_pem.bytes())
    canaries.keep(f"{name}_key", issued.private_key_pem.bytes().decode().splitlines()[1])
    return f"{folder}/{name}.pem", f"{folder}/{name}.key"


def config(secrets: Path, of: dict[str, str], echo: Echo) -> dict[str, object]:
    """A configuration with a secret wherever one may be."""
    pair = {"cert_file": f"{secrets}/client.pem", "key_file": f"{secrets}/client.key"}
    url = f"http://{echo.address}"
    auth = {"bearer_token_file": f"{secrets}/token"}
    rates = {"min_rate": "5/s", "max_rate": "10/s"}
    sweep = {"workload": "probe", "slos": ["quick"], "min_gap": "1s", "limits": {"time": "5s"}} | rates
    targets: list[dict[str, object]] = [
        {"name": "token", "url": url, "auth": auth, "sweep": sweep},
        {"name": "header", "url": url, "headers": {"X-Api-Key": of["header"], "Authorization": f"Basic {of['authorization']}"}},
        {"name": "proxied", "url": "http://engine.example", "auth": auth, "model": "m",
         "proxy_url": f"http://user:{quote(of['proxy'], safe='')}@{echo.address}", "metrics": {"url": "none"}},
        {"name": "tunnelled", "url": "https://engine.example", "auth": auth, "model": "m",
         "proxy_url": f"http://user:${{TUNNEL}}@{echo.address}"},
        {"name": "page", "url": url, "auth": auth, "model": "m",
         "metrics": {"url": f"http://user:{quote(of['page'], safe='')}@{echo.address}/metrics"}},
        {"name": "bad-tls", "url": f"https://{echo.address}", "auth": auth, "model": "m", "tls": pair},
    ]  # fmt: skip
    near = {"hosts": ["127.0.0.0/8"]}
    target = {"auth": {"bearer_token_file": f"{secrets}/found"}, "metrics": {"url": "none"}}
    inventory = {"bearer_token_file": f"{secrets}/inventory"}
    discovery = [
        {"name": "listed", **near, "target": target | {"headers": {"X-Api-Key": of["found_key"]}},
         "http": {"url": f"{url}/list?token={quote(of['ask'], safe='')}", "interval": "5s", "auth": inventory},
         "relabel": [{"source_labels": ["__meta_url"], "replacement": "from $1", "target_label": "name"}]},
        {"name": "followed", **near, "target": target | {"headers": {"Cookie": "session=${COOKIE}"}},
         "kubernetes": {"api_server": url, "namespaces": ["default"], "auth": {"bearer_token_file": f"{secrets}/apiserver"}},
         "relabel": [{"replacement": "/pods/v1", "target_label": "__path__"}]},
    ]  # fmt: skip
    return {
        "defaults": {"rate": "5/s", "arrivals": "constant", "warmup": 0, "connect_lead": "50ms"},
        "slos": {"quick": {"signal": "ttft", "threshold": "500ms", "objective": "90%"}},
        "prometheus": {"url": f"http://user:{quote(of['prometheus'], safe='')}@{echo.address}"},
        "grafana": {"url": url, "auth": {"bearer_token_file": f"{secrets}/grafana"}, "interval": "1m"},
        "targets": targets,
        "discovery": discovery,
    }


def mistaken(of: dict[str, str]) -> list[str]:
    """Files that are not applied, with a secret where the mistake is."""
    secret = of["misplaced"]
    targets: list[object] = [
        {"url": f"http://user:{secret}@h"}, {"url": f"http://user:{secret}@h:port"}, {"url": f"ftp://user:{secret}@h"},
        {"url": "http://h", "auth": secret}, {"url": "http://h", "auth": [secret]}, {"url": "http://h", "auth": {"token": secret}},
        {"url": "http://h", "headers": {"Authorization": [secret]}}, {"url": "http://h", "headers": secret},
        {"url": "http://h", "headers": {"X-Key": f"{secret}\n"}}, {"url": "http://h", "proxy_url": f"socks://u:{secret}@h"},
        {"url": "http://h", "proxy_url": f"http://u:{secret}@h:port"}, {"url": "http://h", "proxy_url": [secret]},
        {"url": "http://h", "metrics": {"url": f"u:{secret}@h"}}, [{"url": "http://h", "headers": {"X-Key": secret}}],
        {"url": f"http://h/?key={secret}"}, {"url": "http://h", "bearer_token": secret},
    ]  # fmt: skip
    api = {"api_server": "https://h", "namespaces": ["n"]}
    discoveries: list[object] = [
        {"http": {"url": f"https://user:{secret}@h"}}, {"http": {"url": f"ftp://h/l?key={secret}"}},
        {"http": {"url": f"http://h/l?key={secret}", "auth": {"bearer_token_file": "x"}}},
        {"http": {"url": f"https://h/l?key={secret}", "interval": "1ms"}}, {"http": {"url": "https://h", "auth": secret}},
        {"http": {"url": "https://h", "auth": {"token": secret}}}, {"kubernetes": api | {"auth": secret}},
        {"kubernetes": api | {"api_server": f"https://user:{secret}@h"}}, {"kubernetes": api | {"auth": {"token": secret}}},
        {"dns": {"names": ["h"]}, "target": {"headers": secret}}, {"dns": {"names": ["h"]}, "target": {"headers": {"X": secret}}},
        {"dns": {"names": ["h"]}, "target": {"proxy_url": f"u:{secret}@h"}},
    ]  # fmt: skip
    files = [yaml.safe_dump({"targets": [target]}) for target in targets]
    files += [yaml.safe_dump({"discovery": [discovery]}) for discovery in discoveries]
    fine = "targets: [{url: 'http://h', model: m}]\n"
    files += [
        fine + f"prometheus: {{url: 'gopher://user:{secret}@h'}}",
        fine + f"grafana: {{url: 'http://user:{secret}@h', auth: {{bearer_token_file: x}}}}",
        fine + f"grafana: {{url: 'http://h', auth: {secret}}}",
        f"targets: [{{url: 'http://h', headers: {{X-Key: {secret}: }}",
        f"targets: [{{url: 'http://h', headers: {{X-Key: *{secret}}}}}]",
        f"targets: [{{url: 'http://h', headers: {{X-Key: !{secret} x}}}}]",
    ]
    return files


class Client:
    """Asks the prober over TLS with its password, and keeps all that it says."""

    def __init__(self, port: int, password: str, context: ssl.SSLContext, leaks: Leaks) -> None:
        self.connection, self._leaks = (
            http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60),
            leaks,
        )
        self._headers = {"Authorization": "Basic " + base64.b64encode(f"admin:{password}".encode()).decode()}

    def ask(self, path: str, method: str = "GET", **headers: str) -> bytes:
        try:
            self.connection.request(method, path, headers=self._headers | headers)
            answer = self.connection.getresponse()
            body, head = answer.read(), str(answer.headers)
        except (OSError, http.client.HTTPException) as problem:
            self.connection.close()
            if isinstance(problem, ConnectionRefusedError):
                raise
            time.sleep(0.2)  # the connection that was kept has ended
            return self.ask(path, method, **headers)
        if answer.status == 429:  # as often as it may be asked
            time.sleep(float(answer.headers["Retry-After"]))
            return self.ask(path, method, **headers)
        self._leaks.add(f"{method} {path} {headers}", body + head.encode())
        return body


ROUTES = ("/", "/?target=token", "/?target=header", "/?target=proxied", "/?target=page",
          "/?target=default/pod", "/?target=from", "/api/v1/targets",
          "/api/v1/probes?limit=1000", "/api/v1/events", "/api/v1/sweeps", "/api/v1/openapi.json", "/runbooks/none", "/none",
          "/probe?target=token", "/probe?target=header", "/probe?target=proxied", "/probe?target=bad-tls",
          "/probe?target=default/pod", "/probe?target=none")  # fmt: skip


def everything(client: Client) -> None:
    for route in ROUTES:
        client.ask(route)
    for form in FORMS:
        client.ask("/metrics", Accept=form)
    for sweep in json.loads(client.ask("/api/v1/sweeps"))["data"]:
        client.ask(f"/api/v1/sweeps/{sweep['id']}")


@pytest.mark.slow  # probes on request are one a second
def test_no_secret_is_said_anywhere(tmp_path: Path, canaries: Canaries) -> None:
    """Log, pages, API, series, store, results, command lines and what commands print: healthy, failing, rejected, mistaken."""
    secrets, store, results = (tmp_path / name for name in ("kept", "store", "results"))
    for folder in (secrets, store, results):
        folder.mkdir()
    authority, of, leaks = trustme.CA(), canaries.of, Leaks(canaries)
    certificate(secrets, "client", canaries, authority)
    cert, key = certificate(secrets, "server", canaries, authority)
    hashed = bcrypt.hashpw(of["password"].encode(), bcrypt.gensalt(4)).decode()
    canaries.keep("hash", hashed)
    web = {"tls_server_config": {"cert_file": cert, "key_file": key}, "basic_auth_users": {"admin": hashed}}
    (secrets / "web.yml").write_text(yaml.safe_dump(web))
    for name in ("token", "grafana", "inventory", "apiserver", "lease", "found"):
        (secrets / name).write_text(of[name])
    context = ssl.create_default_context()
    authority.configure_trust(context)
    port = free_port()
    with Echo() as echo, (tmp_path / "log").open("wb") as log:
        file = secrets / "prober.yaml"
        file.write_text(yaml.safe_dump(config(secrets, of, echo)))
        lease = f"--lease.name=canary --lease.api-server=http://{echo.address} --lease.token-file={secrets}/lease"
        web_flags = f"--web.listen-address=:{port} --web.config.file={secrets}/web.yml --web.enable-admin-api"
        flags = f"--config.file={file} {web_flags} --log.level=debug --storage.path={store} {lease}"
        command = [sys.executable, "-m", "prober", "run", *flags.split()]
        environment = os.environ | {name: of[place] for name, place in VARIABLES.items()}
        client = Client(port, of["password"], context, leaks)
        process = subprocess.Popen(command, stderr=log, env=environment)
        try:
            until(lambda: client.ask("/-/ready") == b"Ready\n", "the daemon")
            run_through(client, echo, secrets, of, leaks)
            leaks.add("cmdline", Path(f"/proc/{process.pid}/cmdline").read_bytes())
        finally:
            client.connection.close()
            process.terminate()
            process.wait(HANG_S)
        commands(echo, secrets, results, leaks, environment)
        heard = "\n".join(echo.heard)
    for folder in (store, results):
        leaks.files(folder)
    logged = (tmp_path / "log").read_bytes()
    leaks.add("log", logged)
    assert set(canaries.in_(heard.encode())) == set(SENT)
    assert [words for words in FAILED if words not in logged] == []
    assert leaks.sources > 80
    assert leaks.places == {}


def run_through(client: Client, echo: Echo, secrets: Path, of: dict[str, str], leaks: Leaks) -> None:
    """Every state a target can be in, then a token that rotates, then files with mistakes."""
    seen: set[str] = set()
    until(lambda: b'"id"' in client.ask("/api/v1/sweeps?target=token", "POST"), "a sweep to begin")
    until(lambda: json.loads(client.ask("/api/v1/sweeps"))["data"], "the sweep's result")
    until(lambda: b'"from http' in client.ask("/api/v1/targets"), "a target of the list")
    until(lambda: b"default/pod" in client.ask("/api/v1/targets"), "a target of the cluster")
    for mode in MODES:
        echo.mode = mode
        for target in ("token", "header", "proxied", "tunnelled", "bad-tls"):
            answer = json.loads(client.ask(f"/api/v1/probes?target={target}", "POST"))
            seen.add(answer["data"]["outcome"])
        seen |= {probe["outcome"] for probe in json.loads(client.ask("/api/v1/probes?limit=1000"))["data"]}
        if mode in ("well", "rejected", "plain"):
            everything(client)
    assert {"ok", "rejected", "http_5xx", "error_in_stream", "malformed", "tls"} <= seen, seen
    echo.mode = "well"
    (secrets / "token").write_text(of["rotated"])
    until(lambda: of["rotated"] in "\n".join(echo.heard), "the new token")
    good = (secrets / "prober.yaml").read_text()
    for text in mistaken(of):
        (secrets / "prober.yaml").write_text(text)
        assert client.ask("/-/reload", "POST") != b"", text
    (secrets / "prober.yaml").write_text(good)
    (secrets / "web.yml.good").write_bytes((secrets / "web.yml").read_bytes())
    for wrong in ({"basic_auth_users": {"admin": of["unsaid"]}}, {"tls_server_config": {"key": of["unsaid"]}}):
        (secrets / "web.yml").write_text(yaml.safe_dump(wrong))
        client.connection.close()  # another one reads the file again
        client.ask("/-/healthy")
    (secrets / "web.yml").write_bytes((secrets / "web.yml.good").read_bytes())
    client.connection.close()
    client.ask("/-/healthy", Authorization="Basic " + base64.b64encode(f"admin:{of['unsaid']}".encode()).decode())
    everything(client)


def commands(echo: Echo, secrets: Path, results: Path, leaks: Leaks, environment: dict[str, str]) -> None:
    """Output of the commands that users run; secrets on a command line are not tested."""
    url, token = f"http://{echo.address}", f"--bearer-token-file={secrets}/token"
    gate = [
        "gate",
        url,
        token,
        "--slo=ttft<5s:50%",
        "--rate=50/s",
        "--max-requests=40",
        f"--output={results}/gate.json",
    ]
    check = ["check", f"--config.file={secrets}/prober.yaml", f"--web.config.file={secrets}/web.yml"]
    calls: dict[str, list[list[str]]] = {
        "well": [check, ["once", url, token], gate, ["report", f"{results}/gate.json"]],
        "rejected": [["once", url, token, "--json"], ["diagnose", url, token], ["dashboards", "push", f"--url={url}"]],
        "malformed": [["once", url, token], gate],
    }
    for mode, commands_ in calls.items():
        echo.mode = mode
        for words in commands_:
            ended = prober(*words, env=environment)
            leaks.add(f"{mode}: {words[0]}", ended.stdout + ended.stderr)
