"""The exit codes of all commands, and how a command ends with one."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum, unique
from pathlib import Path
from typing import NoReturn

from prober.cli.output import echo
from prober.config.problems import ConfigError
from prober.storage.watched_file import write_text


@unique
class ExitCode(IntEnum):
    """The exit codes, with the same meaning in every command."""

    OK = 0
    """Done, and the result is good: ready, accepted, compared, a knee was estimated or the SLOs hold at a rate."""
    FAILED = 1
    """A bad result or a mistake found: not ready, rejected, unanswered, an SLO that fails in a sweep, an invalid
    configuration, a file that cannot be read."""
    WRONG_CALL = 2
    """An argument is missing, unknown or has a wrong value. Nothing was sent."""
    DEGRADED = 3
    """`gate`: the target answers, but misses an objective or is slower than the baseline."""
    NOT_JUDGED = 4
    """Nothing is judged: the measurement shows neither a good nor a bad result, too many requests were refused, or the target cannot
    be measured now."""
    CHANGES_PENDING = 5
    """`dashboards push --dry-run`: Grafana differs from what a push would leave."""
    NO_ESTIMATE = 6
    """`sweep`: what was measured is there, but the process that estimates failed, for example out of memory."""
    OWN_FAULT = 7
    """The prober itself failed: its output or a file cannot be written, or it crashed."""
    INTERRUPTED = 130
    """Ended at once by Ctrl-C: 128 + SIGINT, as shells report it."""
    NO_READER = 141
    """The reader of its output has gone: 128 + SIGPIPE."""

    @property
    def colour(self) -> str:
        """Terminal colour of a verdict with this exit code."""
        return {ExitCode.OK: "green", ExitCode.FAILED: "red"}.get(self, "yellow")


OF_VERDICT: Mapping[str, ExitCode] = {
    **dict.fromkeys(("ready", "accepted", "found", "between", "not_reached"), ExitCode.OK),
    **dict.fromkeys(("not_ready", "rejected", "below"), ExitCode.FAILED),
    "degraded": ExitCode.DEGRADED,
    **dict.fromkeys(("not_enough_data", "not_judged"), ExitCode.NOT_JUDGED),
}


def fail(message: str, code: ExitCode) -> NoReturn:
    """Print `message` on standard error and exit with `code`."""
    echo(message, err=True)
    sys.exit(code)


@contextmanager
def saved(text: str, path: Path | None, option: str) -> Iterator[None]:
    """Write `text` to the file of an option, then run the block, which prints; if writing failed, exit with OWN_FAULT afterwards.

    path: None: write nothing
    """
    problem: OSError | None = None
    try:
        if path is not None:
            write_text(path, text)
    except OSError as failure:
        problem = failure
    yield
    if problem is not None:
        fail(f"{option} {path}: cannot be written: {problem.strerror}", ExitCode.OWN_FAULT)


@contextmanager
def exit_on(*errors: type[Exception], command: str, code: ExitCode = ExitCode.WRONG_CALL) -> Iterator[None]:
    """Exit with `code` and the error's message if the block raises one of `errors`.

    The message begins with `prober COMMAND: `, except for a ConfigError, whose lines name their source.
    """
    try:
        yield
    except errors as error:
        fail(str(error) if isinstance(error, ConfigError) else f"prober {command}: {error}", code)
