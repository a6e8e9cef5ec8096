"""Document of sections with tables, notes and figures, written as Markdown or as one HTML file that loads nothing."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from prober.features.experiments.report.svg_chart import STYLE
from prober.measure.printable import printable

Kind = Literal["", "good", "bad", "few", "unknown"]
# Characters that begin markup: of CommonMark, of GitHub's tables and strikethrough, and of what it makes a link without any.
_MARKUP = re.compile(r"[\\`*\[\]<|~&@]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.", re.IGNORECASE)
_BLOCK_MARK = re.compile(r"^(\d*)(>|[.)#+-](?=[#+-]*(?: |$)))")  # at the beginning: headings, lists, lines, quotations


@dataclass(frozen=True, slots=True)
class Cell:
    """Text in a table. kind: its meaning, shown as a colour or emphasis; aside: smaller text after it; id: of links to it."""

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
    """Paragraph. lead: a result, not an explanation."""

    text: str
    lead: bool = False


@dataclass(frozen=True, slots=True)
class Code:
    """Preformatted text."""

    text: str


@dataclass(frozen=True, slots=True)
class Figure:
    """Chart. keys: (colour, name) of its lines; is_wide: takes the width of the page."""

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
    """The text without its figures; sections that have nothing else are left out."""
    parts = [f"# {_plain(title)}\n"]
    for section in sections:
        blocks = [_markdown(block) for block in section.blocks if not isinstance(block, Figure)]
        if blocks:
            parts += [f"## {_plain(section.title)}\n", *blocks]
    return printable("\n".join(parts))


def as_html(title: str, sections: Sequence[Section]) -> str:
    """A single file, with its style and its charts in it. Its policy forbids a browser to load anything."""
    from jinja2 import Environment, PackageLoader  # here, as most commands write no report

    environment = Environment(
        loader=PackageLoader("prober.features.experiments.report"), autoescape=True, keep_trailing_newline=True
    )
    template = environment.get_template("report.html")
    return printable(template.render(title=title, sections=sections, chart_style=STYLE))


def _markdown(block: Table | Note | Code) -> str:
    if isinstance(block, Note):
        return f"{_plain(block.text)}\n"
    if isinstance(block, Code):
        fence = "```"
        while fence in block.text:
            fence += "`"
        return f"{fence}\n{block.text}\n{fence}\n"
    lines = [
        f"| {' | '.join(_plain(name.removeprefix('#')) for name in block.head)} |",
        f"|{'|'.join('---:' if name.startswith('#') else '---' for name in block.head)}|",
    ]
    lines += [f"| {' | '.join(_md(cell) for cell in row)} |" for row in block.rows]
    return "\n".join(lines) + "\n"


def _md(value: Cell | str) -> str:
    cell = value if isinstance(value, Cell) else Cell(value)
    text = _plain(cell.text)
    marked = f"**{text}**" if cell.kind == "bad" else f"*{text}*" if cell.kind in ("few", "unknown") else text
    return f"{marked} {_plain(cell.aside)}".rstrip()


def _plain(text: str) -> str:
    """Text without markup, links and character references. Texts come from targets and files."""
    escaped = _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))
    return _BLOCK_MARK.sub(r"\1\\\2", escaped)
