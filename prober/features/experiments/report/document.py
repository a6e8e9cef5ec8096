"""Document of sections with tables, notes and figures, written as Markdown or as one HTML file that loads nothing."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prober.measure.printable import printable
from prober.storage.watched_file import asset

Kind = Literal["", "good", "bad", "few", "unknown"]
# Characters that begin markup: of CommonMark, of GitHub's tables and strikethrough, and of what it makes a link without any.
_MARKUP = re.compile(r"[\\`*\[\]<|~&@]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.", re.IGNORECASE)
_BLOCK_MARK = re.compile(r"^(\d*)(>|[.)#+-](?=[#+-]*(?: |$)))")  # at the beginning: headings, lists, lines, quotations


@dataclass(frozen=True, slots=True)
class Cell:
    """Text in a table. kind: meaning, shown as a colour or emphasis; aside: smaller text after it; id: target of links to the cell"""

    text: str
    kind: Kind = ""
    aside: str = ""
    id: str = ""


UNKNOWN = Cell("unknown", "unknown")


@dataclass(frozen=True, slots=True)
class Table:
    """Table. head: column names, with a leading `#` for numbers; rows: cells, as many as columns."""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]


@dataclass(frozen=True, slots=True)
class Note:
    """Paragraph. lead: it states a result, and does not explain one"""

    text: str
    lead: bool = False


@dataclass(frozen=True, slots=True)
class Code:
    """Preformatted text."""

    text: str

    @property
    def fence(self) -> str:
        """The fence around the code in Markdown: more backticks than the text has anywhere in a row."""
        return "`" * max([3, *(1 + len(marks) for marks in re.findall("`+", self.text))])


@dataclass(frozen=True, slots=True)
class Figure:
    """Chart. keys: (colour, name) of each line; is_wide: as wide as the page"""

    title: str
    svg: str
    note: str = ""
    keys: Sequence[tuple[str, str]] = ()
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """Heading and the blocks under it. is_folded: closed at first in HTML, open in print and in Markdown."""

    title: str
    blocks: Sequence[Table | Note | Code | Figure]
    is_folded: bool = False


def as_markdown(title: str, sections: Sequence[Section]) -> str:
    """The document in Markdown, without figures and without sections that have only figures."""
    return _rendered("report.md", title=title, sections=sections)


def as_html(title: str, sections: Sequence[Section]) -> str:
    """The document as a single file with its style and charts. Its content security policy forbids a browser to load anything."""
    return _rendered("report.html", title=title, sections=sections, chart_style=asset("chart.css").decode())


def _rendered(template: str, **values: object) -> str:
    from jinja2 import Environment, PackageLoader, select_autoescape  # here, as most commands write no report

    environment = Environment(
        loader=PackageLoader("prober.features.experiments.report"),
        autoescape=select_autoescape(["html"]),
        keep_trailing_newline=True,
    )
    environment.filters["plain"] = _plain
    return printable(environment.get_template(template).render(values))


def _plain(text: str) -> str:
    """Text without markup, links and character references, as texts from targets and files may contain them."""
    escaped = _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))
    return _BLOCK_MARK.sub(r"\1\\\2", escaped)
