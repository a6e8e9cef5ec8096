"""Real parts that some tests need, and the list of what was skipped for want of them."""

import asyncio
import gc
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import settings

from prober.net.clock import ANCILLARY_BYTES, Stamps
from tests.seeds import SeededRandom
from tests.virtual import VirtualLoop

# What `make tools` fetches is used however the tests are started.
os.environ["PATH"] = f"{Path(__file__).parents[1] / '.tools/usr/bin'}:{os.environ['PATH']}"
settings.register_profile("untimed", deadline=None)  # a busy machine is no failure
settings.load_profile("untimed")

# Real engines take minutes to install and gigabytes to keep: `make test-engines` names where they are.
collect_ignore = [] if os.environ.get("ENGINES_DIR") else ["engines/test_real_engines.py"]
collect_ignore += [] if os.environ.get("APISERVER") else ["cluster/test_cluster.py"]  # `make test-cluster` builds one
collect_ignore += [] if os.environ.get("NODE_IMAGE") else ["node/test_node.py"]  # half an hour: `make test-node`


class RealLoop(asyncio.SelectorEventLoop):
    """An event loop in real time, whose end is that of its connections: those of a server outlive `Server.close` (Python 3.11)."""

    def __init__(self) -> None:
        super().__init__()
        self._accepted: list[socket.socket] = []

    def _accept_connection2(self, protocol: Any, conn: socket.socket, *parts: Any) -> Coroutine[Any, Any, None]:
        """Close what a server accepted just before its end: asyncio leaves it open, and its client waits for ever."""
        self._accepted.append(conn)
        return self._attach(protocol, conn, *parts)

    async def _attach(
        self, protocol: Any, conn: socket.socket, extra: Any, tls: Any, server: asyncio.Server, *parts: Any
    ) -> None:
        if server.sockets:
            await super()._accept_connection2(protocol, conn, extra, tls, server, *parts)  # type: ignore[misc]
        else:
            conn.close()

    def close(self) -> None:
        if not self.is_closed():
            self.run_until_complete(asyncio.sleep(0))  # a connection that was just accepted gets its transport
            for transport in list(self._transports.values()):  # type: ignore[attr-defined]
                if transport._loop is not None:  # it has not ended
                    transport.abort()
            self.run_until_complete(asyncio.sleep(0))
            for conn in self._accepted:  # asyncio.run may have cancelled the task that would give it a transport
                conn.close()
        super().close()


# Commands that run in this process, and servers in a thread, have such a loop too. Policies of loops end with Python 3.16.
asyncio.new_event_loop = asyncio.events.new_event_loop = RealLoop


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The event loop of a test."""
    is_virtual = item.get_closest_marker("virtual_time") and not item.get_closest_marker("real_time")
    return {"loop": VirtualLoop if is_virtual else RealLoop}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    SeededRandom.test, SeededRandom.count = item.nodeid, 0


def pytest_collection() -> None:
    """Thousands of tests are made at once, and all of them stay: the garbage collector would read them again and again."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def own_locks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The locks between processes of a machine: those of this process and what it starts, as others test at the same addresses."""
    folder = str(tmp_path_factory.mktemp("t"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        yield


@pytest.fixture(scope="module", autouse=True)
def leaks_at_home() -> Iterator[None]:
    """What a test leaves open is told beside it, and not in another module, during which it happens to be collected."""
    yield
    gc.collect()


def absent(program: str) -> NoReturn:
    """A real part that the test needs cannot be had: it is skipped, and under CI=true, where each is there, it fails."""
    if os.environ.get("CI") == "true":
        pytest.fail(program, pytrace=False)
    pytest.skip(program)


@pytest.fixture(scope="session")
def stamping() -> Iterator[None]:
    """The kernel stamps what arrives; a system that does not skips the test."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        Stamps().request(ours)
        theirs, _ = server.accept()
        with theirs:
            for _ in range(50):  # the first bytes on a system that stamped nothing before may have none
                theirs.send(b"a")
                if ours.recvmsg(1, ANCILLARY_BYTES)[1]:
                    break
                time.sleep(0.02)
            else:
                absent("no timestamps of the kernel")
        yield  # with a socket that keeps the kernel at it


def part(name: str, advice: str, folder: Path | None = None) -> Path:
    """The program `name` on the PATH, or in `folder` only; without it the test is skipped or fails, with `advice`."""
    path = shutil.which(name, path=folder)
    if path is None:
        absent(f"no {name} {'on the PATH' if folder is None else f'in {folder}'}: {advice}")
    return Path(path)


def newer(name: str) -> Path:
    """Prometheus 3 has it, from a newer suite of the distribution."""
    folder = Path(__file__).parents[1] / ".tools/newer/usr/bin"
    return part(name, "`make tools` fetches that of Prometheus 3, on Debian", folder)


@pytest.fixture(scope="session")
def prometheus_binary() -> Path:
    return part("prometheus", "`make tools` fetches it, or install the package prometheus")


@pytest.fixture(scope="session")
def promtool() -> Path:
    return part("promtool", "`make tools` fetches it, or install the package prometheus")


@pytest.fixture(scope="session")
def alertmanager_binary() -> Path:
    """The distribution calls it prometheus-alertmanager, everybody else alertmanager."""
    name = "prometheus-alertmanager" if shutil.which("prometheus-alertmanager") else "alertmanager"
    return part(name, "`make tools` fetches it, or install the package prometheus-alertmanager")


@pytest.fixture(scope="session")
def amtool() -> Path:
    return part("amtool", "`make tools` fetches it, or install the package prometheus-alertmanager")


@pytest.fixture(scope="session")
def chromium() -> Path:
    """A real browser, as the distribution has it."""
    return part("chromium", "install the package chromium")


@pytest.fixture(scope="session")
def newer_promtool() -> Path:
    """Prometheus 3's."""
    return newer("promtool")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A skipped test is named with its reason at the end of the run: what was not tested is not hidden in a count."""
    skipped = list(_reasons(terminalreporter.getreports("skipped")))
    if skipped:
        terminalreporter.section("not tested")
        for test, reason in skipped:
            terminalreporter.line(f"{test}: {reason}")


def _reasons(reports: list[pytest.TestReport]) -> Iterator[tuple[str, str]]:
    for report in reports:
        where_and_why = report.longrepr
        reason = where_and_why[2] if isinstance(where_and_why, tuple) else str(where_and_why)
        yield report.nodeid, reason.removeprefix("Skipped: ")


@pytest.fixture
def garbage_collector() -> Iterator[None]:
    """The daemon sets it for its process."""
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()
    gc.collect()
    gc.freeze()
