"""A document of sections with tables, notes and figures, as Markdown or as one HTML file that loads nothing."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prober.measure.printable import printable
from prober.storage.watched_file import asset

Kind = Literal["", "good", "bad", "few", "unknown"]
# Characters that begin markup in CommonMark, in GitHub's tables and strikethrough, and in its automatic links.
_MARKUP = re.compile(r"[\\`*\[\]<|~&@]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.", re.IGNORECASE)
_BLOCK_MARK = re.compile(r"^(\d*)(>|[.)#+-](?=[#+-]*(?: |$)))")  # at a line's start: headings, lists, rules, quotes


@dataclass(frozen=True, slots=True)
class Cell:
    """Text in a table. kind: meaning, shown as colour or emphasis; aside: smaller text after it; id: link target"""

    text: str
    kind: Kind = ""
    aside: str = ""
    id: str = ""


UNKNOWN = Cell("unknown", "unknown")


@dataclass(frozen=True, slots=True)
class Table:
    """A table. head: column names, with a leading `#` for numbers; rows: cells, as many as columns"""

    head: Sequence[str]
    rows: Sequence[Sequence[Cell | str]]


@dataclass(frozen=True, slots=True)
class Note:
    """A paragraph. lead: it states a result instead of explaining one"""

    text: str
    lead: bool = False


@dataclass(frozen=True, slots=True)
class Code:
    """Preformatted text."""

    text: str

    @property
    def fence(self) -> str:
        """The Markdown fence around the code: longer than any row of backticks in the text."""
        return "`" * max([3, *(1 + len(marks) for marks in re.findall("`+", self.text))])


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart. keys: (colour, name) per line; is_wide: as wide as the page"""

    title: str
    svg: str
    note: str = ""
    keys: Sequence[tuple[str, str]] = ()
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and the blocks below it. is_folded: initially closed in HTML, open in print and Markdown"""

    title: str
    blocks: Sequence[Table | Note | Code | Figure]
    is_folded: bool = False


def as_markdown(title: str, sections: Sequence[Section]) -> str:
    """The document in Markdown, without figures and sections that only have figures."""
    return _rendered("report.md", title=title, sections=sections)


def as_html(title: str, sections: Sequence[Section]) -> str:
    """The document as one file with style and charts. Its content security policy forbids browsers to load anything."""
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
    """Text without markup, links and character references, which texts from targets and files may contain."""
    escaped = _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))
    return _BLOCK_MARK.sub(r"\1\\\2", escaped)
