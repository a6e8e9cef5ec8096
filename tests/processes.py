"""The prober's programs as processes of their own, on free ports of this machine, and what is asked of them over HTTP."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from tests.scripted import HANG_S as HANG_S


def _ports() -> Iterator[int]:
    """Ports of this process of the tests, below those that the kernel gives to connections, which come and go all the time."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 16
    while True:
        yield from (12_000 + worker * 1_250 + (os.getpid() + number) % 1_250 for number in range(1_250))


_PORTS = _ports()


def free_port() -> int:
    """A port of loopback that nobody listens at, nor will until it is used."""
    while True:
        port = next(_PORTS)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def get(url: str, method: str = "GET", **headers: str) -> str:
    """The body of an answer. Raises urllib.error.HTTPError from 400 on."""
    with urllib.request.urlopen(urllib.request.Request(url, method=method, headers=headers), timeout=60) as answer:
        return str(answer.read().decode())


def fetch(url: str, method: str = "GET") -> tuple[int, str]:
    """Status and body, whatever the status is."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def until(true: Callable[[], Any], event: str, seconds: float = HANG_S) -> Any:
    """The first true result of `true`; errors of a connection, and keys that are not there yet, are ignored meanwhile."""
    end = time.monotonic() + seconds
    while True:
        try:
            if seen := true():
                return seen
        except urllib.error.HTTPError as refusal:
            refusal.close()
        except (OSError, http.client.HTTPException, KeyError):
            pass
        assert time.monotonic() < end, f"waited {seconds} s for {event}"
        time.sleep(0.1)


def value(url: str, name: str, **labels: str) -> float:
    """The sum of the samples `name` on the page of the prober at `url` that have these labels."""
    lines = "\n".join(line for line in get(url + "/metrics").splitlines() if line.startswith(name)) + "\n"
    return sum(
        sample.value
        for family in text_string_to_metric_families(lines)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


class Process:
    """A program whose log is a file. Killed at the end of the `with` block."""

    def __init__(self, log: Path, *command: object) -> None:
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL, stderr=out)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(HANG_S)

    def cpu_s(self) -> float:
        """Processor time that it has used, which a busy machine does not make longer."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(HANG_S)


class Program(Process):
    """A serving command of the prober."""

    def __init__(self, log: Path, *words: object) -> None:
        super().__init__(log, sys.executable, "-m", "prober", *words)


class Prometheus(Process):
    """A Prometheus with this configuration, ready; its data are in `folder`."""

    def __init__(self, binary: Path, folder: Path, document: dict[str, Any], *flags: str) -> None:
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        config = folder / "prometheus.yml"
        config.write_text(json.dumps(document))
        places = (f"--config.file={config}", f"--storage.tsdb.path={folder}/tsdb")
        super().__init__(folder / "prometheus.log", binary, *places, f"--web.listen-address=127.0.0.1:{port}", *flags)
        try:
            until(lambda: get(self.url + "/-/ready"), "Prometheus")
        except BaseException:
            self.kill()
            raise

    def query(self, expr: str, **parameters: object) -> list[dict[str, Any]]:
        """Each series of the result, with its value."""
        words = urllib.parse.urlencode({"query": expr, **parameters})
        rows: list[dict[str, Any]] = json.loads(get(f"{self.url}/api/v1/query?{words}"))["data"]["result"]
        return rows


class Daemon(Program):
    """`prober run` with `config` in `folder`, ready; `flags` are further ones."""

    def __init__(self, folder: Path, config: str, *flags: object, ready_s: float = HANG_S) -> None:
        self.config = folder / "prober.yaml"
        self.config.write_text(config)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        words = ("run", "--config.file", self.config, "--web.listen-address", f"127.0.0.1:{port}")
        super().__init__(folder / "log", *words, *flags)
        try:
            until(lambda: get(self.url + "/-/ready"), "the daemon to be ready", ready_s)
        except BaseException:
            self.kill()
            raise

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples on its page that have these labels."""
        return value(self.url, name, **labels)

    def children(self) -> list[int]:
        """Programs that it started and that are still there."""
        lists = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for path in lists for pid in path.read_text().split()]


class Mock(Program):
    """`prober mock`, answering; it can be started anew at its port."""

    def __init__(self, log: Path, *flags: object, port: int | None = None) -> None:
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.flags = flags
        self.start(log)

    def start(self, log: Path | None = None) -> None:
        """Begin, or begin anew."""
        super().__init__(log or self.log, "mock", "--port", self.port, *self.flags)
        until(lambda: get(self.url + "/version"), "the mock")
