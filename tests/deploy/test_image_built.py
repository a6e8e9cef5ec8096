"""The image built and run for real: `make test-image`, as root, with Podman and runc; minutes.

Its base is the recipe's where that can be pulled, else one that debootstrap makes; the script says which, and fails with neither. Base
and image are kept; the image is built again for another commit or when a file of it changes.
"""

import json
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from prober import __version__
from tests.deploy.container import HARDENED, LIMIT_MB, ROOT, USER, Container, Pair, Podman, missing, pair
from tests.processes import until

IMAGE_FOLDER = os.environ.get("IMAGE_DIR")  # images stay there
pytestmark = pytest.mark.skipif(
    not IMAGE_FOLDER, reason="never a part of `make test`: `make test-image` builds it, in minutes, as root"
)

LIMIT = LIMIT_MB * 2**20
CONFIG = """
defaults: {rate: 5/s, warmup: 0}
slos: {quick: {signal: ttft, threshold: 500ms, objective: 90%}}
workloads: {tiny: {prompt_tokens: 20, output_tokens: 4}}
targets:
  - name: one
    url: http://127.0.0.1:8000
    probes: [{workload: tiny}]
    sweep: {workload: tiny, min_rate: 2/s, max_rate: 20/s}
grafana: {url: "http://127.0.0.1:3", auth: {bearer_token_file: /etc/prober/prober.yaml}}
"""
ENGINE = ("--ttft=20ms", "--itl=1ms", "--slots=4")


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    """With the image. Who asked for it by name is told what it lacks by a failure, not by a skip."""
    if lacks := missing():
        pytest.fail(f"the image cannot be built and run here: {lacks}", pytrace=False)
    folder = Path(str(IMAGE_FOLDER))
    folder.mkdir(parents=True, exist_ok=True)
    made = Podman(folder)
    print(made.built())
    made("image", "prune", "--force")  # of an earlier commit
    yield made
    made.unmount()


@pytest.fixture(scope="module")
def running(podman: Podman, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("running")
    admin = ("--web.enable-admin-api", "--web.listen-address=127.0.0.1:9742")  # elsewhere it takes passwords
    with pair(podman, folder, CONFIG, *admin, engine=ENGINE) as started:
        until(lambda: started.value("llmslo_ttft_seconds_count") >= 5, "five measured probes")
        yield started


def held(podman: Podman) -> list[Path]:
    """Every file of the image, from its root."""
    root = podman.files()
    return sorted(path.relative_to(root) for path in root.rglob("*") if not path.is_dir())


def test_it_is_small(podman: Podman) -> None:
    """The limits are of the compressed size and of the size on a node's disk."""
    assert podman.compressed_bytes() <= 150e6
    assert podman.unpacked_bytes() <= 260e6


def test_nothing_in_it_runs_but_python(podman: Podman) -> None:
    """The one program is Python: no shell, no compiler, no package manager; no pip that Python could run; no file for root's sake."""
    root = podman.files()
    programs = set()
    for path in held(podman):
        real = root / path
        if real.is_symlink() or not real.stat().st_mode & 0o111 or ".so" in path.name:
            continue
        with real.open("rb") as file:
            if file.read(4) == b"\x7fELF":
                programs.add(path.name)
        assert not real.stat().st_mode & 0o6000, f"{path} runs as somebody else"
    assert [name for name in programs if not re.fullmatch(r"python3(\.\d+)?", name)] == []
    assert not {path.name for path in held(podman)} & {
        "sh",
        "bash",
        "dash",
        "busybox",
        "gcc",
        "cc",
        "apt",
        "dpkg",
        "perl",
    }
    assert not [path for path in held(podman) if {"pip", "ensurepip", "setuptools"} & set(path.parts)]


def test_it_says_what_it_is(podman: Podman) -> None:
    """Labels of OCI, who runs it, how it is stopped and asked for its health; its time is the commit's, to the second; the list of
    parts is valid.
    """
    inspected = podman.inspect()
    commit = subprocess.run(
        ["git", "log", "-1", "--format=%cI %H"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    date, revision = commit.stdout.split()
    settings = inspected["Config"]
    assert settings["User"] == f"{USER}:{USER}"
    assert settings["StopSignal"] == "SIGTERM"
    assert inspected["Healthcheck"]["Test"][:2] == ["CMD", "python"]
    labels = {name.removeprefix("org.opencontainers.image."): text for name, text in settings["Labels"].items()}
    assert labels["revision"].startswith(revision)
    assert (labels["title"], labels["version"], labels["licenses"]) == ("llm-slo-prober", __version__, "Apache-2.0")
    assert podman("image", "exists", labels["base.name"]) == "", "the base that it was built on"
    assert datetime.fromisoformat(inspected["Created"]) == datetime.fromisoformat(labels["created"])
    assert datetime.fromisoformat(labels["created"]) == datetime.fromisoformat(date)
    parts = (podman.files() / "opt/prober/sbom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(parts) is None
    names = {part["purl"].partition("@")[0] for part in json.loads(parts)["components"]}
    assert {"pkg:pypi/aiohttp", "pkg:deb/debian/libc6", "pkg:deb/debian/libssl3", "pkg:generic/python"} <= names
    assert not {"pkg:pypi/pip", "pkg:pypi/pytest", "pkg:deb/debian/dash"} & names


def test_the_same_commit_gives_the_same_layers(podman: Podman) -> None:
    """Built again on the same base, from nothing, with the same settings and the same history; no container of the builder is left."""
    first = podman.inspect()
    podman.build()
    again = podman.inspect()
    for part in ("RootFS", "Config", "Healthcheck", "Created", "History"):
        assert again[part] == first[part], part
    assert podman("ps", "--all", "--external", "--filter=name=working-container", "--quiet") == ""


def test_it_runs_without_any_right(running: Pair) -> None:
    """It is process 1 of user 65532, without capabilities or ways to gain them, with a seccomp filter and a read-only root."""
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{running.prober.pid}/status").read_text().splitlines()
        if ":\t" in line
    )
    assert status["NSpid"].split()[-1] == "1"
    assert set(status["Uid"].split()) == {str(USER)}
    assert set(status["Gid"].split()) == {str(USER)}
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    write = "open('/opt/prober/x', 'w')"
    refused = running.prober.podman.try_("exec", running.prober.name, "python", "-c", write)
    assert "Read-only file system" in refused.stderr
    assert running.prober.podman.try_("exec", running.prober.name, "sh", "-c", "true").returncode == 127


def test_its_own_health_check_says_that_it_is_well(running: Pair) -> None:
    """The runtime runs the image's own command, as for Docker and Compose."""
    check = running.prober.podman.try_("healthcheck", "run", running.prober.name)
    assert check.returncode == 0, check.stdout + check.stderr


def test_a_real_prometheus_scrapes_it(running: Pair, prometheus_binary: Path, tmp_path: Path) -> None:
    """Beside it, on its loopback: the target is up and probes are counted."""
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\nscrape_configs: [{job_name: p, static_configs: [{targets: ['127.0.0.1:9742']}]}]\n"
    )
    words = (f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb")
    command = running.prober.inside(prometheus_binary, *words, "--web.listen-address=127.0.0.1:9090")
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:

        def result(query: str) -> Any:
            return json.loads(running.prober.get(f"/api/v1/query?query={query}", 9090))["data"]["result"]

        until(lambda: result("up==1"), "a scrape")
        until(lambda: result("llmslo_probes_total>0"), "probes counted")
    finally:
        process.terminate()
        process.wait(20)


def zombies(container: Container) -> list[str]:
    """Processes of the container that ended and that nobody waited for."""
    first = container.pid
    space = os.readlink(f"/proc/{first}/ns/pid")
    dead = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            if os.readlink(folder / "ns/pid") == space and state == "Z":
                dead.append((folder / "cmdline").name)
        except OSError:
            pass
    return dead


class Children(threading.Thread):
    """Looks every 10 ms at what the daemon, process 1, has started, until the end of the `with` block. seen: their commands"""

    def __init__(self, daemon: int) -> None:
        super().__init__()
        self._parent, self._ended = daemon, threading.Event()
        self.seen: set[str] = set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.wait(0.01):
            listed = [_read(path) for path in Path(f"/proc/{self._parent}/task").glob("*/children")]
            commands = {_command(int(pid)) for text in listed for pid in text.split()}
            self.seen |= commands - {""}

    def kinds(self) -> set[str]:
        """Which of STARTED were seen, and every command that is none of them. A child has its parent's until it runs its own."""
        started = self.seen - {_command(self._parent)}
        return {next((kind for kind in STARTED if kind in command), command) for command in started}


STARTED = ("prober.features.capacity.estimate_process",)


def _command(pid: int) -> str:
    return _read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ").strip()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def test_what_it_starts_it_waits_for(running: Pair) -> None:
    """A sweep's estimate is a process: it becomes no zombie, is not killed for lack of memory, and nothing else is started, not even to
    synchronise with a Grafana, here one that does not exist.
    """
    ask = (
        "import urllib.request as u;"
        "print(u.urlopen(u.Request('http://127.0.0.1:9742/api/v1/sweeps?target=one', method='POST')).status)"
    )
    with Children(running.prober.pid) as children:
        output = running.prober.podman("exec", running.prober.name, "python", "-c", ask)
        assert output == "202"
        until(lambda: running.value("llmslo_sweeps_total") >= 1, "the sweep to end", 300)
        until(lambda: running.value("llmslo_grafana_sync_failures_total") >= 1, "a synchronisation with Grafana")
    assert children.kinds() == set(STARTED)
    assert zombies(running.prober) == []
    assert running.prober.memory().kills == 0


def test_it_survives_its_limit_with_a_full_history(podman: Podman, tmp_path: Path) -> None:
    """1,000 results kept of a target at 128 MiB, read by a browser's and Prometheus's requests; then it drains and exits with 0."""
    config = "targets: [{name: one, url: 'http://127.0.0.1:8000', rate: 40/s, warmup: 0}]\n"
    with pair(podman, tmp_path, config, "--history.limit=1000", engine=("--ttft=5ms", "--itl=1ms")) as full:

        def stored() -> int:
            return len(json.loads(full.prober.get("/api/v1/probes?limit=1000000"))["data"])

        until(lambda: stored() >= 1000, "1,000 results", 120)
        for page in ("/", "/metrics", "/api/v1/probes?limit=1000"):
            assert full.prober.get(page)
        assert stored() >= 1000
        memory = full.prober.memory()
        assert memory.kills == 0
        assert memory.peak_mib <= LIMIT_MB
        code, took = full.prober.end()
        assert code == 0, full.prober.log()
        assert took < 30
        assert "stopping: no new probes" in full.prober.log()
    assert (tmp_path / "state/prober.db").stat().st_uid == USER


def test_the_limit_is_a_limit(podman: Podman) -> None:
    """The tests above can fail: a process that needs more is killed."""
    options = (*HARDENED, '--entrypoint=["python", "-c", "x = bytearray(200 << 20); print(len(x))"]')
    with podman.run(options=options) as greedy:
        greedy.start()
        assert podman("wait", greedy.name) == "137"
