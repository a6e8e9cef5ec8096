"""Output of all commands. Text from servers and files can neither control the terminal nor be invisible in it.

`echo` is the only way to print (the linter refuses `print`), and `console.Terminal` the only console.
"""

import io
import logging
import os
import sys
from contextlib import suppress

from prober.measure.printable import printable


def echo(text: object = "", *, end: str = "\n", err: bool = False, flush: bool = False) -> None:
    """Print on standard output, or with `err` on standard error. flush: write immediately, for the reader of a pipe"""
    print(printable(str(text)), end=end, file=sys.stderr if err else sys.stdout, flush=flush)


def open_outputs() -> None:
    """Replace outputs that the caller closed, and show ? for characters that a terminal's encoding lacks.

    Python has no stream for a closed output, whose number the next file or socket would get.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        if number == 1:
            sys.stdout = open(1, "w", encoding="utf-8")  # noqa: SIM115 -- as long as the process
        elif number == 2:
            sys.stderr = open(2, "w", encoding="utf-8")  # noqa: SIM115
    os.close(number)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def discard_outputs() -> None:
    """Discard pending output: Python would retry it at exit, and end with code 120."""
    with suppress(OSError, ValueError):  # ValueError: there is no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        os.dup2(sys.stdout.fileno(), sys.stderr.fileno())


class PrintableFormatter(logging.Formatter):
    """Log formatter of all commands except `prober run`; its lines contain only printable text."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def log_to_stderr() -> None:
    """Write warnings to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
