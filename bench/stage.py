"""The stage of a benchmark: the real mock and the real daemon, each in a process of its own, on loopback."""

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

END_S = 30.0  # for a process to obey SIGTERM
PROGRAM = ("-m", "prober")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Door:
    """How the daemon is reached. flags: of the daemon; headers, trust: of who asks; trust: with TLS only."""

    flags: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    trust: ssl.SSLContext | None = None

    def open(self, url: str, timeout_s: float) -> Any:
        """The answer to a GET."""
        asked = urllib.request.Request(url, headers=dict(self.headers))
        return urllib.request.urlopen(asked, timeout=timeout_s, context=self.trust)


@dataclass(slots=True)
class Stage:
    """Addresses and processes of a running pair."""

    mock: str
    prober: str
    folder: Path
    daemon: "subprocess.Popen[bytes]"
    started_ns: int
    door: "Door"

    def get(self, path: str) -> bytes:
        """A page of the daemon."""
        with self.door.open(self.prober + path, 30) as answer:
            return bytes(answer.read())

    def probes(self, query: str = "") -> list[dict[str, Any]]:
        """All remembered probes of the daemon, latest first. query: what to choose, with its &"""
        found: list[dict[str, Any]] = json.loads(self.get(f"/api/v1/probes?{query}limit=1000000"))["data"]
        return found

    def truth(self) -> dict[str, dict[str, Any]]:
        """What the mock says it did, by request id."""
        lines = (self.folder / "truth.jsonl").read_text().splitlines()
        return {record["id"]: record for record in map(json.loads, lines)}

    def cpu_s(self) -> float:
        """Processor seconds of the daemon so far, all its processes and threads, user and system."""
        return sum(map(_cpu_s, _family(self.daemon.pid)))

    def rss_mb(self) -> float:
        """Resident memory of all processes of the daemon; pages that they share count once."""
        return sum(map(_pss_mb, _family(self.daemon.pid)))


def _family(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from _family(int(child))


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:  # it has ended
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS


def _pss_mb(pid: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0


@contextlib.contextmanager
def stage(
    config: str,
    *mock_options: str,
    history: int = 5000,
    door: Door | None = None,
    program: Sequence[str] = PROGRAM,
) -> Iterator[Stage]:
    """A mock and a daemon with `config`, in which {mock} stands for the mock's address; both end with the context.

    program: arguments of Python that start the daemon
    """
    with tempfile.TemporaryDirectory(prefix="prober-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        ports = free_port(), free_port()
        door = door or Door()
        mock_url, prober_url = (
            f"{scheme}://127.0.0.1:{port}"
            for scheme, port in zip(("http", "https" if door.trust else "http"), ports, strict=True)
        )
        truth = ["--truth", str(folder / "truth.jsonl")]
        _start(stack, folder, "mock", "mock", "--port", str(ports[0]), "--seed", "1", *truth, *mock_options)
        _wait(f"{mock_url}/health")
        (folder / "prober.yaml").write_text(config.replace("{mock}", mock_url))
        listen = f"127.0.0.1:{ports[1]}"
        options = ["--config.file", str(folder / "prober.yaml"), "--web.listen-address", listen]
        started_ns = time.monotonic_ns()
        daemon = _start(
            stack, folder, "prober", "run", *options, "--history.limit", str(history), *door.flags, program=program
        )
        _wait(f"{prober_url}/-/ready", door)
        yield Stage(mock_url, prober_url, folder, daemon, started_ns, door)


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(
    stack: contextlib.ExitStack, folder: Path, name: str, *arguments: str, program: Sequence[str] = PROGRAM
) -> "subprocess.Popen[bytes]":
    log = stack.enter_context((folder / f"{name}.log").open("wb"))
    process = subprocess.Popen([sys.executable, *program, *arguments], stdout=log, stderr=log)

    def end() -> None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    stack.callback(end)
    return process


def _wait(url: str, door: Door | None = None, seconds: float = 60) -> None:
    door = door or Door()
    end = time.monotonic() + seconds
    while True:
        try:
            with door.open(url, 1):
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
