"""Shared by commands that send a load: output of the result, the sending processes, and exit codes."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from prober.cli.console import Terminal
from prober.cli.exit_codes import ExitCode, exit_on, saved
from prober.cli.options import WorkerOptions
from prober.cli.output import echo
from prober.config.problems import ConfigError
from prober.net.clock import Clock
from prober.net.endpoint import BadEndpoint
from prober.probing.session import UnidentifiedTarget
from prober.probing.worker_host import WorkersUnavailable
from prober.probing.workers import Workers, open_workers


@dataclass(frozen=True, slots=True)
class ResultOptions:
    """Where the result of an experiment goes: to a file, or as JSON or text to standard output."""

    output: Annotated[Path | None, typer.Option(help="File for the result, for `prober report`.")] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON, as --output writes it.")] = False

    def check(self) -> None:
        """Check before sending that the file can be written, leaving no empty file. Raises ValueError."""
        path = self.output
        if path is None:
            return
        is_new = not path.exists() and not path.is_symlink()
        try:
            path.open("ab").close()
        except OSError as problem:
            raise ValueError(f"--output {path}: cannot be written: {problem.strerror}") from None
        if is_new:
            path.unlink()

    def end(self, command: str, text: Callable[[], str], code: ExitCode, show: Callable[[], None]) -> NoReturn:
        """Write the result, print it, and exit with `code`. text: its JSON; show: prints it as text"""
        written = text() if self.output or self.as_json else ""
        with saved(written, self.output, f"prober {command}: --output"):
            if self.as_json:
                echo(written)
            else:
                show()
        sys.exit(code)


@contextmanager
def refusals(command: str) -> Iterator[None]:
    """Exit with WRONG_CALL for a mistake in the options, with NOT_JUDGED for unusable target or workers."""
    with (
        exit_on(ConfigError, BadEndpoint, OSError, ValueError, command=command),
        exit_on(UnidentifiedTarget, WorkersUnavailable, command=command, code=ExitCode.NOT_JUDGED),
    ):
        yield


@asynccontextmanager
async def sending(options: WorkerOptions, *, quiet: bool = False) -> AsyncIterator[tuple[Clock, Workers, Progress]]:
    """Create a clock, sending processes, and progress lines on standard error. Raises WorkersUnavailable."""
    columns = TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()
    terminal = Terminal(stderr=True, highlight=False, soft_wrap=True)
    with closing(Clock()) as clock, Progress(*columns, console=terminal, disable=quiet) as progress:
        async with open_workers(options.count(), ray=options.ray) as workers:
            yield clock, workers, progress
