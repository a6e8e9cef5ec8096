"""The recipes of docs/guides/health.md and deploy/loadbalancers, but for addresses and intervals, in the real programs."""

import json
import os
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import part
from tests.processes import HANG_S, Daemon, Mock, Process, fetch, free_port, get, until

GUIDE = Path(__file__).parents[2] / "docs/guides/health.md"
BALANCERS = Path(__file__).parents[2] / "deploy/loadbalancers"
ADVICE = "`make tools` fetches it, or install the package"
CONFIG = """
defaults: {{rate: 20/s, max_in_flight: 200, timeouts: {{first_token: 5s}}}}
targets:
  - {{name: a, url: "{a}"}}
  - {{name: b, url: "{b}"}}
"""


def recipes() -> list[str]:
    """The YAML of the guide."""
    return re.findall(r"```yaml\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def post(url: str, body: dict[str, Any]) -> None:
    """Send JSON. Raises an error where the answer is one."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=HANG_S) as answer:
        answer.read()


class Scene:
    """Two engines `a` and `b`, a prober, and a proxy before the engines."""

    def __init__(self, folder: Path, engines: dict[str, Mock]) -> None:
        self.folder, self.engines, self._open = folder, engines, ExitStack()
        self.fault()
        config = CONFIG.format(**{name: engine.url for name, engine in self.engines.items()})
        self.prober = self._open.enter_context(Daemon(folder, config))
        self.port = free_port()

    def close(self) -> None:
        """Kill all programs."""
        self._open.close()

    def run(self, program: Path, config: str, *flags: str) -> None:
        """Start a proxy with this configuration, and wait until both engines answer through it."""
        _, _, prober_port = self.prober.url.rpartition(":")
        for address, port in (("10.0.0.1:8000", self.engines["a"].port), ("10.0.0.2:8000", self.engines["b"].port)):
            config = config.replace(address, f"127.0.0.1:{port}")
        config = config.replace("10.0.0.9", "127.0.0.1").replace("9742", prober_port)
        path = self.folder / "proxy.conf"
        path.write_text(config.replace("inter 2s", "inter 200ms"))
        self._open.enter_context(Process(self.folder / "proxy.log", program, *flags, path))
        until(lambda: self.answering() == {"a", "b"}, "both engines to answer through the proxy")

    def answering(self, requests: int = 20) -> set[str]:
        """Names of the engines that answer so many requests through the proxy; each of them has to be answered."""
        models = [json.loads(get(f"http://127.0.0.1:{self.port}/v1/models")) for _ in range(requests)]
        return {model["data"][0]["id"] for model in models}

    def use(self, engine: str) -> None:
        """Let ten users ask this engine through the proxy; the other one has no such model, and refuses them."""
        for _ in range(10):
            post(f"http://127.0.0.1:{self.port}/v1/completions", {"model": engine, "prompt": "hello", "max_tokens": 2})

    def fault(self, *faults: str) -> None:
        """Set the faults of engine `a`."""
        post(f"{self.engines['a'].url}/mock/fault", {"faults": faults})

    def healthy(self, name: str) -> float:
        return self.prober.value("llmslo_target_healthy", target=name)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Mock]]:
    folder = tmp_path_factory.mktemp("engines")
    with ExitStack() as started:
        mocks = {name: Mock(folder / name, "--ttft", "5ms", "--itl", "1ms", "--model", name) for name in ("a", "b")}
        for mock in mocks.values():
            started.enter_context(mock)
        yield mocks


@pytest.fixture
def scene(tmp_path: Path, engines: dict[str, Mock]) -> Iterator[Scene]:
    part("curl", "install it")
    scene = Scene(tmp_path, engines)
    try:
        yield scene
    finally:
        scene.close()


def haproxy(scene: Scene, recipe: str) -> Callable[[], bool]:
    """Start HAProxy with a backend; returns whether it has noticed that it cannot reach the prober, by its statistics."""
    stats = scene.folder / "s"
    config = f"""
global
    stats socket {stats} level admin
defaults
    mode http
    timeout connect 1s
    timeout client 10s
    timeout server 10s
frontend engines
    bind 127.0.0.1:{scene.port}
    default_backend engines
{recipe}"""
    scene.run(part("haproxy", ADVICE), config, "-db", "-f")

    def has_lost_prober() -> bool:
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect(str(stats))
            asking.send(b"show stat\n")
            answer = b"".join(iter(lambda: asking.recv(65_536), b"")).decode()
        return sum("L4CON" in line for line in answer.splitlines()) == 2

    return has_lost_prober


def agent_check(scene: Scene) -> Callable[[], bool]:
    return haproxy(scene, (BALANCERS / "haproxy-agent-check.cfg").read_text())


def http_check(scene: Scene) -> Callable[[], bool]:
    return haproxy(scene, (BALANCERS / "haproxy-http-check.cfg").read_text())


def nginx(scene: Scene) -> Callable[[], bool]:
    """Start nginx; returns whether the answers that it remembers are too old."""
    server, include = ((BALANCERS / name).read_text() for name in ("nginx.conf", "prober-health.conf"))
    temporary = "\n".join(
        f"{kind}_temp_path {scene.folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = f"""
{"user root;" if os.geteuid() == 0 else ""}
daemon off;
pid {scene.folder}/pid;
error_log {scene.folder}/error.log;
events {{}}
http {{
access_log off;
{temporary}
{server.replace("include /etc/nginx/prober-health.conf;", include)}
}}"""
    config = config.replace("/run/nginx-", f"{scene.folder}/").replace("/var/cache/nginx", str(scene.folder))
    scene.run(part("nginx", ADVICE), config.replace("listen 80;", f"listen 127.0.0.1:{scene.port};"), "-c")
    stopped_s = time.monotonic() + 1e9

    def has_forgotten() -> bool:
        nonlocal stopped_s
        stopped_s = min(stopped_s, time.monotonic())
        return time.monotonic() > stopped_s + 2.0

    return has_forgotten


@pytest.mark.parametrize("proxy", [agent_check, http_check, nginx])
def test_an_engine_that_generates_nothing_is_out_of_rotation_until_it_generates(
    scene: Scene, proxy: Callable[[Scene], Callable[[], bool]]
) -> None:
    """Though its own health page says 200. Its neighbour is not touched, and a killed prober takes nobody out."""
    has_noticed = proxy(scene)
    scene.fault("no_first_token")
    until(lambda: scene.healthy("a") == 0.0, "the prober to notice")
    until(lambda: scene.answering() == {"b"}, "the engine to be out of rotation")
    assert fetch(f"{scene.engines['a'].url}/health")[0] == 200
    status, text = fetch(f"{scene.prober.url}/health/a")
    assert (status, "timeout_first_token" in text) == (503, True)
    assert fetch(f"{scene.prober.url}/health/b")[0] == 200
    scene.use("b")
    scene.fault()
    until(lambda: scene.answering() == {"a", "b"}, "the engine to be back")
    scene.prober.kill()
    until(has_noticed, "the proxy to notice that the prober is gone")
    until(lambda: scene.answering() == {"a", "b"}, "both engines without a prober")


def test_haproxy_leaves_an_engine_out_while_the_agent_is_gone(scene: Scene) -> None:
    """A dead engine does not come back because the prober is gone; a person can bring it back."""
    has_noticed = agent_check(scene)
    scene.fault("no_first_token")
    until(lambda: scene.answering() == {"b"}, "the engine to be out of rotation")
    scene.prober.kill()
    until(has_noticed, "the proxy to notice that the prober is gone")
    assert scene.answering() == {"b"}
    scene.fault()
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(str(scene.folder / "s"))
        asking.send(b"set server engines/a agent up\n")
        assert asking.recv(100).strip() == b""
    until(lambda: scene.answering() == {"a", "b"}, "the engine to be back")


@pytest.fixture
def kubelet(scene: Scene) -> Callable[[str, str], int]:
    """Runs the command of a probe of the guide as the kubelet does; the exit code."""
    blocks = {name: block for text in recipes() for name, block in yaml.safe_load(text).items()}

    def run(probe: str, url: str) -> int:
        *shell, script = blocks[probe]["exec"]["command"]
        script = script.replace("http://127.0.0.1:9742/health/NAMESPACE/llama", url)
        script = script.replace("/tmp/has-generated", str(scene.folder / "has-generated"))
        return subprocess.run([*shell, script], check=False).returncode

    return run


def test_the_kubelet_restarts_an_engine_once_and_never_for_an_ill_sidecar(
    scene: Scene, kubelet: Callable[[str, str], int]
) -> None:
    """An engine that has not generated since its container started is not restarted, so there is no loop."""
    url, mark = f"{scene.prober.url}/health/a", scene.folder / "has-generated"
    scene.fault("no_first_token")
    until(lambda: fetch(url)[0] == 503, "the prober to notice")
    assert [kubelet(probe, url) for probe in ("livenessProbe", "readinessProbe")] == [0, 1]  # a model that never worked
    scene.fault()
    until(lambda: fetch(url)[1].startswith("healthy"), "the engine to generate")
    assert [kubelet(probe, url) for probe in ("livenessProbe", "readinessProbe")] == [0, 0]
    assert mark.exists()
    scene.fault("no_first_token")
    until(lambda: fetch(url)[0] == 503, "the prober to notice")
    assert [kubelet(probe, url) for probe in ("livenessProbe", "readinessProbe")] == [1, 1]
    mark.unlink()  # with the container that is restarted
    assert [kubelet(probe, url) for probe in ("livenessProbe", "readinessProbe")] == [0, 1]
    mark.touch()
    for ill in (f"{scene.prober.url}/health/mistyped", "http://127.0.0.1:1/health/a"):
        assert [kubelet(probe, ill) for probe in ("livenessProbe", "readinessProbe")] == [0, 0]
