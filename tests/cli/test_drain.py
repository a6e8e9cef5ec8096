"""`prober drain`: which process it finds among those of a container, and what it says where it cannot tell."""

import os
import signal
from pathlib import Path

import pytest

from prober.cli import drain as command
from prober.cli.drain import drain

PYTHON = "/opt/prober/bin/python"


class Processes:
    """A folder like /proc; our own process is in the mount namespace 1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.add("self", f"{PYTHON} -m prober drain")
        (folder / "cpuinfo").write_text("")

    def add(self, pid: str, words: str, namespace: int = 1, parent: int = 0, name: str = "python") -> None:
        folder = self.folder / pid
        (folder / "ns").mkdir(parents=True)
        (folder / "cmdline").write_bytes(words.replace(" ", "\0").encode() + b"\0")
        (folder / "ns/mnt").symlink_to(f"mnt:[{namespace}]")
        (folder / "stat").write_text(f"{pid} ({name}) S {parent} {pid} 0")


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Processes:
    monkeypatch.setattr(command, "PROC", tmp_path)
    return Processes(tmp_path)


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: found.append((pid, number)))
    return found


def test_it_finds_the_prober_of_its_own_container(processes: Processes, killed: list[tuple[int, int]]) -> None:
    """Not its forks and workers, not the engine, not the prober of another container of a pod that shares its processes."""
    processes.add("1", "/pause", namespace=2)
    processes.add("7", f"{PYTHON} -m prober run --keep-running", parent=0, name="py) S 9 9")
    processes.add("8", f"{PYTHON} -m prober run --keep-running", parent=7)
    processes.add("9", f"{PYTHON} -m prober run --keep-running", parent=8)
    processes.add("10", f"{PYTHON} -m prober.probing.worker 1 3 7", parent=7)
    processes.add("11", "python -m vllm --model=run prober", namespace=3)
    processes.add("12", f"{PYTHON} -m prober run", namespace=4)
    processes.add("13", "cat run prober")
    drain()
    assert killed == [(7, signal.SIGUSR1)]


@pytest.mark.parametrize(
    ("probers", "says"),
    [((), "none runs here; name it with --pid"), (("7", "9"), "processes 7, 9 run one each; choose one with --pid")],
)
def test_it_sends_nothing_where_it_cannot_tell(
    probers: tuple[str, ...],
    says: str,
    processes: Processes,
    killed: list[tuple[int, int]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On a machine with several probers, or none."""
    for pid in probers:
        processes.add(pid, f"{PYTHON} -m prober run")
    with pytest.raises(SystemExit) as ended:
        drain()
    assert (ended.value.code, killed) == (1, [])
    assert says in capsys.readouterr().err


def test_a_process_that_is_gone_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """With its number and the system's reason."""
    with pytest.raises(SystemExit):
        drain(2**22 + 7)
    assert capsys.readouterr().err == f"prober drain: process {2**22 + 7}: No such process\n"
