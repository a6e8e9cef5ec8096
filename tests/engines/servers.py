"""Real servers as child processes on the loopback: started, waited for, stopped by their process group."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from prometheus_client.parser import text_string_to_metric_families

T = TypeVar("T")
POLL_S = 0.1
STOP_S = 20.0


@dataclass(frozen=True)
class Server:
    """A process that answers at `url` (no path), in one group with all that it started; `log` is what it said."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL to the process that holds the sockets, and to no other: nothing is said to its clients."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """Ends the whole group: asked first, killed after STOP_S."""
        if self.alive():
            self.process.terminate()
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)  # what a server that was killed left behind


def start(
    command: Sequence[str | Path], *, port: int, ready: str, log: Path, within_s: float, environment: Mapping[str, str]
) -> Server:
    """Starts `command` and returns when GET `ready` answers 200. Raises AssertionError with the end of its log."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **environment},
        )
    server = Server(f"http://127.0.0.1:{port}", process, log)
    try:
        until(lambda: not server.alive() or status(server.url + ready) == 200, within_s, f"{command[0]} to be ready")
        assert server.alive(), f"{command[0]} ended by itself"
    except BaseException as problem:
        server.stop()
        problem.add_note(f"the end of {log}:\n{log.read_text(errors='replace')[-3000:]}")
        raise
    return server


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def until(seen: Callable[[], T | None], within_s: float, what: str) -> T:
    """Polls until `seen` gives something true, and gives it; AssertionError when it does not in time."""
    deadline = time.monotonic() + within_s
    while not (value := seen()):
        assert time.monotonic() < deadline, f"waited {within_s:g} s for {what}"
        time.sleep(POLL_S)
    return value


def status(url: str) -> int | None:
    """The HTTP status of a GET, None where nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as answer:
        return answer.code
    except OSError:
        return None


def post(url: str, body: Mapping[str, Any]) -> tuple[int | None, str]:
    """Status and text of a POST of JSON; no status and the reason where the connection failed."""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as answer:
        return answer.code, answer.read().decode()
    except OSError as problem:
        return None, str(problem)


@dataclass(frozen=True)
class Page:
    """One reading of a metrics page."""

    samples: list[tuple[str, Mapping[str, str], float]]

    @classmethod
    def of(cls, server: Server) -> "Page":
        with urllib.request.urlopen(server.url + "/metrics", timeout=5) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        return cls([(sample.name, sample.labels, sample.value) for family in families for sample in family.samples])

    def sum(self, name: str, **labels: str) -> float:
        """The sum over the samples of that name with those labels, 0 if there is none."""
        return sum(
            value for found, carried, value in self.samples if found == name and labels.items() <= carried.items()
        )
