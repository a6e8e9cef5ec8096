"""Terminal output with tables, colours and progress bars, and the handling of Ctrl-C and SIGTERM."""

import asyncio
import signal
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from prober.measure.printable import printable


class Terminal(Console):
    """A console that prints only printable text, also in table cells."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Make a string printable; Rich calls this for every string that it prints."""
        return super().render_str(printable(text), **options)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> None:
        """Print a table without rules. left: number of leading columns with text; the others have figures"""
        table = Table(box=None, pad_edge=False)
        for place, column in enumerate(columns):
            table.add_column(column, justify="left" if place < left else "right", overflow="fold")
        for row in rows:
            table.add_row(*row)
        self.print(table)


def on_interrupt(stop: Callable[[], None]) -> None:
    """Call `stop` at Ctrl-C or SIGTERM, in the event loop. A second one ends the program immediately."""
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, interrupt)
