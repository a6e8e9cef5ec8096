"""Checks answers in a separate process, because an answer can make its check take seconds.

The process checks one answer at a time with at most CHECK_CPU_S of CPU time, after which the kernel ends it. The limit includes C
code, but not waiting for a busy machine. The next check starts a new process. An answer whose check ends the process counts as
wrong, with a message that says so. Exact texts are compared without the process.

The first check that needs the process starts it; it ends with the prober.
"""

import asyncio
import atexit
import json
import os
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import IO

from prober.measure.quality import Expectation, answer_problem
from prober.measure.tool_calls import ToolCall
from prober.net.libc import end_with_parent

CHECK_CPU_S = 0.5
MAX_WAIT_S = 20.0  # for the process, with its start; longer only if the machine has no time for it
MAX_MEMORY_BYTES = 512 << 20  # of address space: a check that needs more fails
NICENESS = 10


class CheckUnavailable(Exception):
    """An answer could not be checked because of the prober or its machine."""


class AnswerChecks:
    """The process that checks answers, and the thread that waits for it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = ThreadPoolExecutor(1, "answer-checks")
        atexit.register(self.close)

    @property
    def process_id(self) -> int | None:
        """Id of the process; None before the first check."""
        return self._process.pid if self._process else None

    async def problem(self, expectation: Expectation, answer: str, calls: Sequence[ToolCall] = ()) -> str:
        """The fault of an answer; "" if it is right; see `quality.answer_problem`. Raises CheckUnavailable."""
        named = [(call.name, call.arguments) for call in calls]
        if expectation.kind == "text":
            return answer_problem(expectation, answer, named)
        asked = (expectation.kind, expectation.expected, expectation.is_call_required)
        line = json.dumps([asked, answer, named]).encode() + b"\n"
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._ask, line)

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _ask(self, line: bytes) -> str:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
            reply = _line(process.stdout)
        except OSError as problem:
            self.close()
            raise CheckUnavailable(str(problem)) from None
        if reply:
            return str(json.loads(reply))
        code = process.wait()
        self.close()
        # From here only this answer can be the cause: the process had started, and waited for it.
        if code == -signal.SIGPROF:
            return f"the check of this answer was stopped: it used {CHECK_CPU_S:g} s of CPU time, which is its limit"
        return f"the check of this answer ended the process that checks (status {code})"

    def _running(self) -> "subprocess.Popen[bytes]":
        if self._process is not None and self._process.poll() is not None:
            self.close()  # the process ended between two checks
        if self._process is None:
            try:
                # A separate session: Ctrl-C in a terminal only reaches the prober, which decides.
                self._process = subprocess.Popen(
                    (sys.executable, "-m", "prober.probing.answer_checks", str(os.getpid())),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
                assert self._process.stdout is not None
                if not _line(self._process.stdout):
                    raise OSError(f"it ended with status {self._process.wait()}")
            except OSError as problem:
                self.close()
                raise CheckUnavailable(f"its process does not start: {problem}") from None
        return self._process


def _line(stream: IO[bytes]) -> bytes:
    """Read the next line; b"" if the stream ends before it. Raises TimeoutError after MAX_WAIT_S without a byte."""
    line, ready = b"", select.poll()
    ready.register(stream, select.POLLIN)
    while not line.endswith(b"\n"):
        if not ready.poll(MAX_WAIT_S * 1e3):
            raise TimeoutError(f"no reply within {MAX_WAIT_S:g} s")
        piece = os.read(stream.fileno(), 1 << 16)
        if not piece:
            return b""
        line += piece
    return line


@cache
def answer_checks() -> AnswerChecks:
    """The AnswerChecks shared in this process, created at the first call."""
    return AnswerChecks()


def main(parent: int) -> None:
    """Check the answers on lines of standard input until it ends. parent: id of the process; this one ends with it"""
    end_with_parent(parent)
    os.nice(NICENESS)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    _write("ready")
    for line in sys.stdin.buffer:
        asked, answer, calls = json.loads(line)
        expectation = Expectation(*asked)
        if expectation.kind != "regex":
            import jsonschema  # noqa: F401 - loaded before the time of the check begins
        signal.setitimer(signal.ITIMER_PROF, CHECK_CPU_S)
        try:
            fault = answer_problem(expectation, answer, calls)
        except Exception as problem:
            fault = f"the check of this answer failed ({type(problem).__name__}: {str(problem)[:200]})"
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(fault)


def _write(text: str) -> None:
    sys.stdout.buffer.write(json.dumps(text).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
