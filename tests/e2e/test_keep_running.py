"""`prober run --keep-running`, as a sidecar runs it: nothing that is wrong around it ends it, and what is mended is taken."""

import base64
import fcntl
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path

import bcrypt
import pytest

from prober.storage.store import Store
from tests.conftest import absent
from tests.faults.conftest import absent_if_impossible
from tests.faults.disks import empty, fill, small_disk
from tests.processes import HANG_S, Mock, Program, fetch, free_port, get, until, value

OK = "llmslo_config_last_reload_successful"
TARGET = "targets: [{{name: one, url: 'http://127.0.0.1:{port}', rate: 20/s, max_in_flight: 200, warmup: 0}}]\n"


@pytest.fixture(scope="module")
def mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mock]:
    with Mock(tmp_path_factory.mktemp("mock") / "log", "--ttft", "10ms", "--itl", "1ms") as started:
        yield started


class KeepRunning(Program):
    """A prober that keeps running; `url` is where its pages are, or will be."""

    def __init__(self, folder: Path, *flags: object, config: Path | None = None, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        words = ("--config.file", config or folder / "prober.yaml", "--web.listen-address", f"127.0.0.1:{self.port}")
        super().__init__(folder / "log", "run", "--keep-running", *words, *flags)

    def is_well(self) -> bool:
        """Whether both health checks of a kubelet succeed."""
        return fetch(self.url + "/-/healthy")[0] == fetch(self.url + "/-/ready")[0] == 200

    def probes(self) -> float:
        return value(self.url, "llmslo_probes_total", target="one")

    def logged(self, text: str) -> int:
        return sum(text in line for line in self.log.read_text().splitlines() if "level=error" in line)


def missing(path: Path) -> None:
    pass


def folder(path: Path) -> None:
    path.mkdir()


def text(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def put(path: Path, make: Callable[[Path], object]) -> None:
    """Replace a file by what `make` makes, in one step, so that nobody reads a part of it."""
    made, link = path.with_name(f"{path.name}.{time.monotonic_ns()}"), path.with_name("link")
    make(made)
    link.symlink_to(made.name)
    os.replace(link, path)


MISTAKES = [
    (missing, "cannot be read: [Errno 2]"),
    (folder, "cannot be read: [Errno 21]"),
    (text(b""), "not a mapping"),
    (text(b"\xff\xfe targets"), "cannot be read: 'utf-8' codec"),
    (text(b"targets: [{url: http://h, ulr: 1}]"), "targets[0].ulr: unknown key"),
    (text(b"targets: [{url: http://h}"), "prober.yaml:1:26: did not find"),
    (text(b"targets: [{url: http://h, probes: [{workload: [[[[]]]]}]}]"), "targets[0].probes[0].workload"),
]


def test_every_mistake_is_shown_and_the_first_good_file_is_taken(tmp_path: Path, mock: Mock) -> None:
    """Mistake after mistake: it answers as well, says what is wrong once, and probes once the file is right."""
    config = tmp_path / "prober.yaml"
    with KeepRunning(tmp_path) as prober:
        until(prober.is_well, "the pages")
        for spoil, message in MISTAKES:
            put(config, spoil)
            until(partial(prober.logged, message), message)
            until(prober.is_well, "the pages")
            assert value(prober.url, OK) == 0
            page = get(prober.url + "/")
            assert "configuration not applied, nothing is probed until it is fixed" in page
            assert "No target is configured" in page
        status, answer = fetch(prober.url + "/-/reload", "POST")
        assert status == 500
        assert "targets[0].probes[0].workload" in answer
        put(config, text(TARGET.format(port=mock.port).encode()))
        until(lambda: prober.probes() >= 3, "probes")
        assert value(prober.url, OK) == 1
        assert "not applied" not in get(prober.url + "/")
        for _, message in MISTAKES[:-1]:
            assert prober.logged(message) == 1, message
        assert prober.stop() == 0


def test_a_config_map_that_appears_late_is_taken(tmp_path: Path, mock: Mock) -> None:
    """The files change as the kubelet changes them: an empty folder, then ..data as a symlink, which is replaced."""
    mount = tmp_path / "etc"
    mount.mkdir()

    def publish(version: str, content: str) -> None:
        (mount / version).mkdir()
        (mount / version / "prober.yaml").write_text(content)
        (mount / "..data_tmp").symlink_to(version)
        os.replace(mount / "..data_tmp", mount / "..data")
        if not (mount / "prober.yaml").is_symlink():
            (mount / "prober.yaml").symlink_to("..data/prober.yaml")

    with KeepRunning(tmp_path, config=mount / "prober.yaml") as prober:
        until(prober.is_well, "the pages")
        until(lambda: prober.logged("cannot be read: [Errno 2]"), "the mistake")
        assert fetch(prober.url + "/health/one") == (200, "unknown: the prober does not know all of its targets yet\n")
        publish("..1", "targets: 5")
        until(lambda: prober.logged("targets: needed"), "the next mistake")
        publish("..2", TARGET.format(port=mock.port))
        until(lambda: prober.probes() >= 3, "probes")
        publish("..3", "targets: 6")
        until(lambda: value(prober.url, OK) == 0, "the last mistake")
        assert "the old one stays in use" in get(prober.url + "/")
        before = prober.probes()
        until(lambda: prober.probes() > before + 3, "more probes")


def test_files_that_the_configuration_names_may_come_late(tmp_path: Path, mock: Mock) -> None:
    """The configuration itself does not change then: without any in effect it is read again by itself."""
    certificate = tmp_path / "ca.pem"
    target = f"{{name: one, url: 'http://127.0.0.1:{mock.port}', rate: 20/s, tls: {{ca_file: '{certificate}'}}}}"
    (tmp_path / "prober.yaml").write_text(f"targets: [{target.replace('http:', 'https:')}]")
    with KeepRunning(tmp_path) as prober:
        until(lambda: prober.logged("tls.ca_file"), "the mistake")
        authority = pytest.importorskip("trustme").CA()
        authority.cert_pem.write_to_path(str(certificate))
        until(lambda: value(prober.url, OK) == 1, "the configuration")
        assert prober.logged("tls.ca_file") == 1


@contextmanager
def locked(path: Path) -> Iterator[None]:
    path.mkdir()
    with closing(sqlite3.connect(path / "prober.db")) as other:
        other.execute("PRAGMA locking_mode = EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        yield


@contextmanager
def below_a_file(path: Path) -> Iterator[None]:
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    yield


@pytest.mark.parametrize("spoil", [locked, below_a_file])
def test_without_storage_it_probes_and_says_so(
    tmp_path: Path, mock: Mock, spoil: Callable[[Path], AbstractContextManager[None]]
) -> None:
    """State is in memory then, which the log, the page and the series tell."""
    (tmp_path / "prober.yaml").write_text(TARGET.format(port=mock.port))
    with spoil(tmp_path / "storage"), KeepRunning(tmp_path, "--storage.path", tmp_path / "storage") as prober:
        until(lambda: prober.probes() >= 3, "probes")
        assert prober.is_well()
        assert value(prober.url, OK) == 0
        assert "state is in memory only, the storage is tried again" in get(prober.url + "/")
        assert prober.logged(f"--storage.path {tmp_path / 'storage'}: ") == 1
        assert fetch(prober.url + "/-/reload", "POST")[0] == 200
        assert value(prober.url, OK) == 0
        assert prober.stop() == 0


def mended_storage(tmp_path: Path, folder: Path, gone: int, spoilt: str, mend: Callable[[], object]) -> None:
    """A prober whose storage cannot be used until `mend` goes on, and knows then that the target at the port `gone` has answered.

    spoilt: the state of that target before
    """
    well = free_port()
    (tmp_path / "prober.yaml").write_text(
        "defaults: {rate: 20/s, max_in_flight: 200}\n"
        f"targets: [{{name: gone, url: 'http://127.0.0.1:{gone}'}}, {{name: well, url: 'http://127.0.0.1:{well}'}}]\n"
    )
    options = ("--ttft", "10ms", "--itl", "1ms")

    def state(name: str) -> bool:
        return value(prober.url, "llmslo_target_state", target="gone", state=name) == 1

    with Mock(tmp_path / "well", *options, port=well), KeepRunning(tmp_path, "--storage.path", folder) as prober:
        with Mock(tmp_path / "gone", *options, port=gone) if spoilt == "ready" else nullcontext():
            until(lambda: state(spoilt), f"the state {spoilt}")
            assert value(prober.url, OK) == 0
        mend()
        until(lambda: value(prober.url, OK) == 1, "the storage")
        until(lambda: state("failing"), "the state of a target that has answered before")
        assert value(prober.url, "llmslo_probe_failures_total", target="well") == 0
        assert prober.logged(f"--storage.path {folder}: ") == 1
        assert f"--storage.path {folder}: can be used now; the prober begins again with it" in prober.log.read_text()
        assert prober.stop() == 0
    store = Store(str(folder))
    assert f"127.0.0.1:{gone}" in store.load("answered")["all"].decode()
    store.close()


def test_storage_that_another_program_let_go_is_read(tmp_path: Path) -> None:
    """The process does not end for it. What is stored there counts."""
    gone, folder = free_port(), tmp_path / "storage"
    store = Store(str(folder))
    store.save("answered", [("all", json.dumps({"gone": f"127.0.0.1:{gone}"}).encode())], time.time())
    store.close()
    with closing(sqlite3.connect(folder / "prober.db")) as other:
        other.execute("BEGIN EXCLUSIVE")
        mended_storage(tmp_path, folder, gone, "starting", other.close)


def test_a_disk_with_room_again_is_written(tmp_path: Path) -> None:
    """What was learnt meanwhile is kept: a target that answered then, and no longer does, fails."""
    with absent_if_impossible(), small_disk(tmp_path) as disk:
        fill(disk)
        mended_storage(tmp_path, disk, free_port(), "ready", partial(empty, disk))


def test_a_full_disk_does_not_end_its_start(tmp_path: Path, mock: Mock) -> None:
    """Rows that are too old cannot be deleted then; they are left out."""
    (tmp_path / "prober.yaml").write_text(TARGET.format(port=mock.port))
    with absent_if_impossible(), small_disk(tmp_path) as disk:
        store = Store(str(disk))
        store.save("demand", [("old", b"{}")], time.time() - 400 * 86_400)
        store.save("demand", [("new", b"{}")], time.time())
        store.close()
        fill(disk)
        with KeepRunning(tmp_path, "--storage.path", disk) as prober:
            until(lambda: prober.probes() >= 3, "probes")
            assert prober.is_well()
            assert prober.logged("old demand states are not removed, but left out: ") == 1
            assert prober.stop() == 0


def test_an_address_in_use_is_waited_for(tmp_path: Path, mock: Mock) -> None:
    """It probes meanwhile, says once that nobody can read it, and serves as soon as the address is free."""
    (tmp_path / "prober.yaml").write_text(TARGET.format(port=mock.port))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        prober = KeepRunning(tmp_path, port=port)
        with prober:
            until(lambda: "probing 1 target, no pages yet" in prober.log.read_text(), "the start")
            until(lambda: prober.logged("no pages are served"), "the mistake")
            before = value(mock.url, "vllm:request_success_total")
            until(lambda: value(mock.url, "vllm:request_success_total") > before, "probes")
            taken.close()
            until(prober.is_well, "the pages")
            until(lambda: value(prober.url, OK) == 1, "no mistake any more")
            assert prober.logged(f"--web.listen-address 127.0.0.1:{port}: ") == 1
            assert prober.stop() == 0


def test_it_ends_while_it_waits_for_its_address(tmp_path: Path) -> None:
    """SIGTERM is heard without pages too, and without a configuration."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with KeepRunning(tmp_path, port=taken.getsockname()[1]) as prober:
            until(lambda: "no pages yet" in prober.log.read_text(), "the start")
            assert prober.stop() == 0


@pytest.mark.parametrize("spoil", [missing, folder, text(b"\xff")])
def test_pages_whose_protection_cannot_be_read_are_not_served(
    tmp_path: Path, mock: Mock, spoil: Callable[[Path], object]
) -> None:
    """Only health is, which tells nothing; once the file is right the pages ask for the password that it has."""
    (tmp_path / "prober.yaml").write_text(TARGET.format(port=mock.port))
    web = tmp_path / "web.yaml"
    put(web, spoil)
    with KeepRunning(tmp_path, "--web.config.file", web) as prober:
        until(prober.is_well, "health")
        for path, method in (("/metrics", "GET"), ("/", "GET"), ("/api/v1/targets", "GET"), ("/-/reload", "POST")):
            assert fetch(prober.url + path, method)[0] == 503, path
        assert str(tmp_path) not in fetch(prober.url + "/")[1]
        until(lambda: fetch(prober.url + "/health/one") == (200, "healthy\n"), "the health of the target")
        assert prober.logged(str(web)) == 1
        hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
        put(web, text(f"basic_auth_users: {{me: '{hashed}'}}".encode()))
        until(lambda: fetch(prober.url + "/metrics")[0] == 401, "the password to be asked for")
        assert prober.is_well()
        me = "Basic " + base64.b64encode(b"me:secret").decode()
        until(lambda: f"{OK} 1" in get(prober.url + "/metrics", Authorization=me), "the series")
        assert "llmslo_probes_total" in get(prober.url + "/metrics", Authorization=me)


def test_actions_stay_off_until_somebody_is_asked_who_they_are(tmp_path: Path, mock: Mock) -> None:
    """A web configuration that lets everybody in does not end the prober, and does not switch actions on either."""
    (tmp_path / "prober.yaml").write_text(TARGET.format(port=mock.port))
    web = tmp_path / "web.yaml"
    web.write_text("")
    port = free_port()
    flags = (
        "--web.config.file",
        web,
        "--web.enable-admin-api",
        "--web.listen-address",
        f"127.1:{port}",
    )  # not known to be loopback
    with KeepRunning(tmp_path, *flags, port=port) as prober:
        until(prober.is_well, "health")
        assert value(prober.url, OK) == 0
        assert "actions stay off" in get(prober.url + "/")
        assert fetch(prober.url + "/api/v1/pauses?target=one", "POST")[0] == 403


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        (("--web.listen-address", "9742"), 2, "--web.listen-address: '9742': write"),
        (
            ("--web.listen-address", ":0", "--web.enable-admin-api"),
            1,
            "--web.enable-admin-api would let anyone who reaches",
        ),
        (("--shard", "2/2"), 2, "--shard"),
    ],
)
def test_flags_that_cannot_mend_themselves_end_it(
    tmp_path: Path, flags: tuple[str, ...], code: int, message: str
) -> None:
    """At once, with what to write."""
    with KeepRunning(tmp_path, *flags) as prober:
        assert prober.process.wait(HANG_S) == code
    assert message in prober.log.read_text()


def test_the_end_of_the_pod_is_heard_from_the_first_moment_on(tmp_path: Path, mock: Mock) -> None:
    """`prober drain` beside a prober that is still starting, as process 1 or not; its targets are never probed."""
    (tmp_path / "prober.yaml").write_text(TARGET.format(port=mock.port))
    with KeepRunning(tmp_path) as prober:
        held = Path(f"/proc/{prober.process.pid}/status")
        until(lambda: signal.SIGUSR1 in signals(held, "SigBlk") | signals(held, "SigCgt"), "the first moment")
        prober.process.send_signal(signal.SIGUSR1)
        is_early = signal.SIGUSR1 in signals(held, "SigBlk")  # this process did not stand still meanwhile
        until(lambda: value(prober.url, "llmslo_target_state", target="one", state="draining") == 1, "the end")
        assert not signals(held, "SigBlk") & {signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1}
        assert prober.probes() == 0 or not is_early
        assert prober.stop() == 0


def test_a_target_that_is_configured_after_the_end_of_its_pod_is_draining(tmp_path: Path, mock: Mock) -> None:
    """The file is mended, or gives it another name, between the hook and the end."""
    config = tmp_path / "prober.yaml"
    with KeepRunning(tmp_path) as prober:
        until(prober.is_well, "the pages")
        prober.process.send_signal(signal.SIGUSR1)
        until(lambda: "the pod is being ended" in prober.log.read_text(), "the hook")
        for name in ("one", "other"):
            config.write_text(TARGET.format(port=mock.port).replace("one", name))
            until(partial(value, prober.url, "llmslo_target_state", target=name, state="draining"), name)
            assert value(prober.url, "llmslo_probe_failures_total") == 0


def signals(status: Path, field: str) -> set[int]:
    """Numbers in a mask of /proc/PID/status."""
    (mask,) = (line.split()[1] for line in status.read_text().splitlines() if line.startswith(field))
    return {number for number in range(1, 65) if int(mask, 16) >> (number - 1) & 1}


def test_process_1_is_ended_at_any_moment_of_its_start(tmp_path: Path) -> None:
    """The kernel drops signals that process 1 of a container does not handle, and its pod would wait for the whole grace period."""
    absent_without_namespaces()
    flags = ("--config.file", tmp_path / "prober.yaml", "--web.listen-address", f"127.0.0.1:{free_port()}")
    command = ("unshare", "--pid", "--fork", sys.executable, "-m", "prober", "run", "--keep-running", *map(str, flags))
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as outer:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        until(lambda: children.read_text(), "process 1")
        first = int(children.read_text())
        program = Path(f"/proc/{first}/cmdline")
        until(lambda: program.read_bytes().startswith(sys.executable.encode()), "the prober in place of unshare")
        held = Path(f"/proc/{first}/status")
        until(lambda: signal.SIGTERM in signals(held, "SigBlk") | signals(held, "SigCgt"), "the first moment")
        os.kill(first, signal.SIGTERM)
        try:
            assert outer.wait(HANG_S) == 0
        finally:
            with suppress(ProcessLookupError):
                os.kill(first, signal.SIGKILL)


def absent_without_namespaces() -> None:
    if subprocess.run(["unshare", "--pid", "--fork", "true"], check=False, capture_output=True).returncode:
        absent("no process namespaces here: unshare --pid needs root")


def test_a_log_that_nobody_reads_stops_nothing(tmp_path: Path, mock: Mock) -> None:
    """As while a container runtime is away. Lines are dropped, and those after it are whole again."""
    config, port = tmp_path / "prober.yaml", free_port()
    config.write_text(TARGET.format(port=mock.port))
    read, write = os.pipe()
    fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
    words = ("run", "--keep-running", "--config.file", str(config), "--web.listen-address", f"127.0.0.1:{port}")
    url = f"http://127.0.0.1:{port}"
    with open(read, "rb") as log, subprocess.Popen([sys.executable, "-m", "prober", *words], stderr=write) as prober:
        try:
            until(lambda: value(url, "llmslo_probes_total") >= 3, "probes")
            assert os.get_blocking(write)  # as a shell's other commands expect of the pipe that they share
            os.close(write)
            config.write_text("targets:\n" + "  - {url: http://h, ulr: 1}\n" * 50)
            for _ in range(3):
                assert fetch(url + "/-/reload", "POST")[0] == 500
            before = value(url, "llmslo_probes_total")
            until(lambda: value(url, "llmslo_probes_total") >= before + 3, "more probes")
            assert value(url, "llmslo_probes_neutral_total") == 0
            os.set_blocking(read, False)
            assert len(log.read()) > 2000
            prober.send_signal(signal.SIGTERM)
            assert prober.wait(HANG_S) == 0
            stopping = 'msg="stopping: no new probes, up to 20 s for those in flight"'
            assert any(line.endswith(stopping) for line in log.read().decode().splitlines())
        finally:
            prober.kill()
