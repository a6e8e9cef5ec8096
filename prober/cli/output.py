"""Output of all commands. Texts of servers and files can neither control the terminal nor hide in it.

`echo` is the only way to print (the linter refuses `print`), and `console.Terminal` the only console.
"""

import logging
import sys

from prober.measure.printable import printable


def echo(text: object = "", *, end: str = "\n", err: bool = False, flush: bool = False) -> None:
    """Print on standard output, or with `err` on standard error. flush: write it at once, for a reader of a pipe"""
    print(printable(str(text)), end=end, file=sys.stderr if err else sys.stdout, flush=flush)


class PrintableFormatter(logging.Formatter):
    """Log formatter of all commands but `prober run`, whose lines have printable text only."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def log_to_stderr() -> None:
    """Write warnings to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(PrintableFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
