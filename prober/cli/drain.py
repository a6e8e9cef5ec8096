"""`prober drain`: tells the prober of this container that its pod is being ended."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from prober.cli.exit_codes import ExitCode, fail

PROC = Path("/proc")


def drain(
    pid: Annotated[
        int | None,
        typer.Option(min=1, help="Process of the prober; default: the only `prober run` of this container and user."),
    ] = None,
) -> None:
    """Let the prober send nothing more to targets in its own pod (loopback addresses), and count no failure of what is under way.

    For a preStop hook: Kubernetes runs it when it begins to end the pod. If the pod is there an hour later, it is probed again.
    """
    pids = [pid] if pid is not None else sorted(_probers())
    if len(pids) != 1:
        what = f"processes {', '.join(map(str, pids))} run one each; choose one" if pids else "none runs here; name it"
        fail(f"prober drain: {what} with --pid", ExitCode.FAILED)
    (prober,) = pids
    try:
        os.kill(prober, signal.SIGUSR1)
    except OSError as problem:
        fail(f"prober drain: process {prober}: {problem.strerror}", ExitCode.FAILED)


def _probers() -> Iterator[int]:
    """Process ids of `prober run` in this container, without processes started by them."""
    parents = {
        int(folder.name): parent for folder in PROC.iterdir() if (parent := _parent_of_prober(folder)) is not None
    }
    return (pid for pid, parent in parents.items() if parent not in parents)


def _parent_of_prober(folder: Path) -> int | None:
    """Id of the parent process if the process is a `prober run` of this container; else None."""
    try:
        words = (folder / "cmdline").read_bytes().split(b"\0")
        names = [word.rpartition(b"/")[2] for word in words]
        if b"prober" not in names or names[names.index(b"prober") + 1] != b"run":
            return None
        if (folder / "ns/mnt").readlink() != (PROC / "self/ns/mnt").readlink():
            return None
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError, ValueError):  # it ended, belongs to another user, or is no process
        return None
