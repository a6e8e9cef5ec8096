"""Faults of the prober itself: its output or a file cannot be written, the reader has gone, or the caller has closed its output."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import HANG_S, free_port, get, until

CONFIG = """\
targets: [{name: a, url: "http://127.0.0.1:9"}]
slos: {ttft: {signal: ttft, threshold: 500ms, objective: 99%}}
"""
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of prctl(2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "prober.yaml").write_text(CONFIG)
    return tmp_path


def shell(folder: Path, words: str) -> subprocess.CompletedProcess[str]:
    """`prober WORDS` in a shell, with what the words do to its output."""
    command = f'set -o pipefail; "{sys.executable}" -m prober {words}'
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, timeout=HANG_S, check=False
    )


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("rules --output none/rules.yaml", 7, "--output none/rules.yaml: cannot be written: No such file or directory"),
        ("rules --output /dev/full", 7, "--output /dev/full: cannot be written: No space left on device"),
        ("rules --output .", 7, "--output .: cannot be written: Is a directory"),
        ("rules > /dev/full", 7, "its output cannot be written: No space left on device"),
        ("check > /dev/full", 7, "its output cannot be written: No space left on device"),
        ("--help > /dev/full", 7, "its output cannot be written: No space left on device"),
        ("dashboards write --output /proc/none", 7, "/proc/none: No such file or directory"),
        ("gate http://127.0.0.1:{port} > /dev/full", 7, "its output cannot be written: No space left on device"),
        ("gate http://127.0.0.1:{port} --json > /dev/full", 7, "its output cannot be written: No space left on device"),
        ("gate http://127.0.0.1:{port}", 1, "to be ready takes"),
        ("mock --port 99999", 2, "'--port'"),
        ("rules > /dev/full 2>&1", 7, ""),
        ("rules >&-", 0, ""),
        ("rules 2>&-", 0, ""),
        ("rules", 0, ""),
    ],
)  # fmt: skip
def test_an_own_fault_is_one_line_and_no_verdict(folder: Path, words: str, code: int, message: str) -> None:
    """No traceback, and no exit code that says something about a target; the neighbours keep theirs."""
    done = shell(folder, words.format(port=free_port()))
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert message in done.stderr
    assert not message or done.stderr.count("\n") <= 4


@pytest.mark.parametrize("command", ["--help", "rules"])
def test_a_reader_that_has_gone_is_no_fault(folder: Path, command: str) -> None:
    """Nothing is printed about it, and the exit code is that of a program which ignores it."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "prober", command], cwd=folder, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=HANG_S
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode in (0, 141), done.stderr) == (True, "")


def test_a_daemon_runs_without_standard_error(folder: Path) -> None:
    """And ends on SIGTERM; signals without a meaning do not end it."""
    port = free_port()
    command = [sys.executable, "-m", "prober", "run", "--web.listen-address", f"127.0.0.1:{port}"]
    with subprocess.Popen(command, cwd=folder, preexec_fn=lambda: os.close(2)) as process:
        try:
            until(lambda: _answers(port), "the daemon")
            for number in (signal.SIGALRM, signal.SIGUSR2, signal.SIGVTALRM):
                process.send_signal(number)
            assert _answers(port)
        finally:
            process.terminate()
        assert process.wait(HANG_S) == 0


def _answers(port: int) -> bool:
    try:
        return bool(get(f"http://127.0.0.1:{port}/-/healthy"))
    except OSError:
        return False
