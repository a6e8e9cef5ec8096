"""A command of the prober, called in this process: a new interpreter for each call takes longer than most commands."""

import contextlib
import io
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from unittest.mock import patch

from prober.cli import main
from tests.processes import HANG_S


def prober(
    *words: object, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`prober WORDS` in `cwd`, with `env` added to the environment.

    `prober run` is a process of its own, as it forks and sets signals and the log up for its whole process.
    """
    arguments = [str(word) for word in words]
    if arguments[:1] == ["run"]:
        command, environment = [sys.executable, "-m", "prober", *arguments], os.environ | dict(env or {})
        return subprocess.run(
            command, capture_output=True, text=True, timeout=HANG_S, check=False, cwd=cwd, env=environment
        )
    out, err = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    code: object = 0
    with (
        contextlib.chdir(cwd or "."),
        patch.dict(os.environ, env or {}),
        patch.object(sys, "argv", ["prober", *arguments]),
        patch.object(main, "gc"),  # its settings are for a process with one command
        _no_log_handlers(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter(
            "ignore", ResourceWarning
        )  # a look-up that the end of a command cuts ends with its process
        try:
            main.main()
        except SystemExit as exit_:
            code = exit_.code or 0
    assert isinstance(code, int), code
    return subprocess.CompletedProcess(["prober", *arguments], int(code), *map(_written, (out, err)))


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()


@contextlib.contextmanager
def _no_log_handlers() -> Iterator[None]:
    """A root logger as at the start of a process, so that the command's own handler is the only one."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    root.handlers = []
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)
