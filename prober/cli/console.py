"""Console with tables, colours and progress bars."""

from typing import Any

from rich.console import Console
from rich.text import Text

from prober.measure.printable import printable


class Terminal(Console):
    """A console on which texts are printable, in cells of tables too."""

    def render_str(self, text: str, **options: Any) -> Text:
        """The text of a string."""
        return super().render_str(printable(text), **options)
