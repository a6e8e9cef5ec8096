"""Document of sections with tables, notes and figures, written as Markdown or as one HTML file that loads nothing."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from prober.features.experiments.report.svg_chart import STYLE
from prober.measure.printable import printable

Kind = Literal["", "good", "bad", "few", "unknown"]
_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --muted: #57606a; --line: #e4e7eb; --good: #116329;
  --bad: #b3182d; --few: #7a5c00; --c0: #0969da; --c1: #c2570c; --c2: #1a7f5a; --c3: #8250df; --c4: #b5308b;
  --c5: #57606a; --shade: 42% }
@media (prefers-color-scheme: dark) { :root { --paper: #0d1117; --ink: #e6edf3; --muted: #9aa4af; --line: #272e37;
  --good: #56d364; --bad: #ff7b72; --few: #d9a93a; --c0: #58a6ff; --c1: #f0883e; --c2: #4cc38a; --c3: #b392f0;
  --c4: #f27ac2; --c5: #9aa4af; --shade: 60% } }
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: var(--ink);
  background: var(--paper) }
h1 { font-size: 1.4rem } h2 { font-size: 1.1rem; margin: 2.4rem 0 .6rem } h3 { font-size: 1rem; margin: 1.4rem 0 .4rem }
.wide { overflow-x: auto; margin: .6rem 0 1.1rem } table { border-collapse: collapse } th, td { text-align: left; padding: .25rem .7rem;
  vertical-align: top } th { border-bottom: 1px solid var(--muted); font-weight: 600 }
tr + tr td { border-top: 1px solid var(--line) } td:first-child, th:first-child { padding-left: 0; white-space: nowrap }
th { vertical-align: bottom }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
th.n { white-space: normal } .n small { display: block; font-size: .78em }
.good { color: var(--good) } .bad { color: var(--bad); font-weight: 600 } .few, .unknown { color: var(--few) }
.unknown { font-style: italic } small, .note, figcaption { color: var(--muted) } .note { max-width: 60rem }
pre { white-space: pre-wrap; font-size: 12.5px; border: 1px solid var(--line); padding: .6rem .8rem; border-radius: 6px }
summary { font-size: 1.1rem; font-weight: 600; cursor: pointer } details { border-top: 1px solid var(--line); padding: .6rem 0 }
section + details { margin-top: 2.4rem } .lead { font-size: 1.1rem; max-width: 60rem }
figure.wide { grid-column: 1 / -1 }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(30rem, 100%), 1fr)); gap: 1.6rem 2rem }
figure { margin: 0 } figcaption { font-size: .92em; margin-top: .3rem } figcaption b { color: var(--ink) }
.key { white-space: nowrap; margin-right: 1em } .key i { display: inline-block; width: .8em; height: .8em;
  border-radius: 2px; margin-right: .35em; background: var(--colour);
  print-color-adjust: exact }
@media print { :root { --paper: #fff; --ink: #000; --muted: #444; --line: #ccc; --good: #116329; --bad: #b3182d; --few: #7a5c00;
  --c0: #0969da; --c1: #c2570c; --c2: #1a7f5a; --c3: #8250df; --c4: #b5308b; --c5: #57606a; --shade: 42% }
  body { margin: 0; max-width: none; font-size: 9.5pt } .wide { overflow: visible } th, td { padding: .15rem .35rem; font-size: 7pt }
  figure, tr { break-inside: avoid } h2, summary { break-after: avoid }
  details:not([open])::details-content { content-visibility: visible; display: block } }
"""
# Characters that begin markup: of CommonMark, of GitHub's tables and strikethrough, and of what it makes a link without any.
_MARKUP = re.compile(r"[\\`*\[\]<|~&@]|(?<![^\W_])_|_(?![^\W_])|:(?=//)|(?<=www)\.", re.IGNORECASE)
_BLOCK_MARK = re.compile(r"^(\d*)(>|[.)#+-](?=[#+-]*(?: |$)))")  # at the beginning: headings, lists, lines, quotations
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


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
    body = "".join(_section(section) for section in sections if section.blocks)
    return printable(
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{escape(title)}</title>'
        f"<style>{_STYLE}{STYLE}</style></head><body><h1>{escape(title)}</h1>{body}</body></html>\n"
    )


def _section(section: Section) -> str:
    figures = [block for block in section.blocks if isinstance(block, Figure)]
    rest = "".join(_html(block) for block in section.blocks if not isinstance(block, Figure))
    drawn = f'<div class="figures">{"".join(map(_figure, figures))}</div>' if figures else ""
    if section.is_folded:
        return f"<details><summary>{escape(section.title)}</summary>{rest}{drawn}</details>"
    return f"<section><h2>{escape(section.title)}</h2>{rest}{drawn}</section>"


def _figure(figure: Figure) -> str:
    keys = "".join(
        f'<span class="key"><i style="--colour:{colour}"></i>{escape(name)}</span> ' for colour, name in figure.keys
    )
    note = f" {escape(figure.note)}" if figure.note else ""
    wide = " class=wide" if figure.is_wide else ""
    return f"<figure{wide}>{figure.svg}<figcaption><b>{escape(figure.title)}.</b>{note}<br>{keys}</figcaption></figure>"


def _html(block: Table | Note | Code) -> str:
    if isinstance(block, Note):
        return f"<p class=lead>{escape(block.text)}</p>" if block.lead else f'<p class="note">{escape(block.text)}</p>'
    if isinstance(block, Code):
        return f"<pre>{escape(block.text)}</pre>"
    numeric = [name.startswith("#") for name in block.head]
    head = "".join(
        f"<th{' class=n' if number else ''}>{escape(name.removeprefix('#'))}</th>"
        for name, number in zip(block.head, numeric, strict=True)
    )
    rows = "".join(
        f"<tr>{''.join(_td(cell, number) for cell, number in zip(row, numeric, strict=True))}</tr>"
        for row in block.rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead>{rows}</table></div>'


def _td(value: Cell | str, number: bool) -> str:
    cell = value if isinstance(value, Cell) else Cell(value)
    aside = f" <small>{escape(cell.aside)}</small>" if cell.aside else ""
    text = f"<span class={cell.kind}>{escape(cell.text)}</span>" if cell.kind else escape(cell.text)
    anchor = f' id="{escape(cell.id)}"' if cell.id else ""
    return f"<td{anchor}{' class=n' if number else ''}>{text}{aside}</td>"


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
