"""Other programs' metrics pages, read fast and never fatally.

Takes the text formats 0.0.4 and 1.0.0, OpenMetrics served as text (exemplars, `# EOF`), CRLF, and MLC's home-made text (tabs,
label values without quotes). A line nobody can read is skipped and counted. Samples named `_created` are dropped: they are
times, not measurements. Types are not read: `_total` on a histogram exists, so the tables say what a name is.

Why not prometheus-client's parser: it takes 8 ms for 629 lines of vLLM's page, in one go, while the event loop stamps nothing.
Here a page is read in slices, only the wanted names are kept, and label texts, which are the same at every scrape, are read
once per `Parser`.
"""

import re
from collections.abc import Container, Generator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

SLICE_BYTES = 16 << 10  # about 200 lines: a few tenths of a millisecond
REMEMBERED = 8192  # label texts; more are forgotten all at once
_SHOWN = 120

# Possessive throughout, so that no line can make it backtrack. A label value without quotes is MLC's.
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*+"
_LABEL = r'[ \t,]*+([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+(?:"((?:[^"\\]++|\\.)*+)"|([^\s,"{}]++))[ \t]*+'
_LABELS = _LABEL.replace("([", "(?:[").replace('"((?:', '"(?:(?:')
_LINE = re.compile(
    rf"[ \t]*+({_NAME})[ \t]*+(?:\{{((?:{_LABELS})*+,?[ \t]*+)\}}[ \t]*+|(?<=[ \t]))"
    r"([^\s#_{}]++)(?:[ \t]++-?[0-9.eE+]++)?+[ \t]*+(?:#.*)?+\r?"
)
_ONE_LABEL = re.compile(_LABEL)
_ESCAPE = re.compile(r"\\(.)")


class Sample(NamedTuple):
    """One value of one series. Equal label texts share one mapping, so it is not to be changed."""

    labels: Mapping[str, str]
    value: float


@dataclass(slots=True)
class Page:
    """What a page says: samples by name, in their order on the page.

    lines: non-empty lines that are no comments, unwanted ones too; broken: how many of them could not be read, and the first
    of those, cut short; eof: it ended with OpenMetrics' `# EOF`
    """

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    lines: int = 0
    broken: int = 0
    first_broken: str = ""
    eof: bool = False


class Parser:
    """Reads one server's pages again and again. `wanted`: sample names to keep (`x_bucket`, `x_sum`, … by themselves); None: all.

    Lines of other names are not looked at, so they are not counted as broken either.
    """

    def __init__(self, wanted: Container[str] | None = None) -> None:
        self.wanted = wanted
        self._known: dict[str, Mapping[str, str]] = {}

    def parse(self, body: bytes) -> Page:
        """The whole page at once."""
        slices = self.slices(body)
        while True:
            try:
                next(slices)
            except StopIteration as stop:
                page: Page = stop.value
                return page

    def slices(self, body: bytes, size: int = SLICE_BYTES) -> Generator[None, None, Page]:
        """The page, `size` bytes and the rest of a line at a time; other work may run between them. Returns it at the end.

        Bytes that are no UTF-8 become U+FFFD.
        """
        page = Page()
        start = 0
        while start < len(body):
            end = body.find(b"\n", start + size)
            end = len(body) if end < 0 else end + 1
            self._read(body[start:end].decode("utf-8", "replace"), page)
            start = end
            if start < len(body):
                yield
        return page

    def _read(self, text: str, page: Page) -> None:
        wanted, samples = self.wanted, page.samples
        for line in text.split("\n"):
            if not line or line[0] == "#" or line.isspace():
                page.eof = page.eof or line.startswith("# EOF")
                continue
            page.lines += 1
            name, _, rest = line.partition("{")
            if wanted is not None and name not in wanted and line.split(None, 1)[0] not in wanted:
                continue  # most lines of most pages end here
            if (sample := self._seen(name, rest)) is not None and name in samples:
                samples[name].append(sample)
                continue
            read = self._line(line)
            if read is None:
                page.broken += 1
                page.first_broken = page.first_broken or line[:_SHOWN]
            elif not read[0].endswith("_created"):
                samples.setdefault(read[0], []).append(read[1])

    def _seen(self, name: str, rest: str) -> Sample | None:
        """The sample behind `name{`, if its label text was read before and only a number follows it."""
        text, _, number = rest.rpartition("} ")
        labels = self._known.get(text)
        if not labels or "_" in number:
            return None
        try:
            return Sample(labels, float(number))
        except ValueError:
            return None

    def _line(self, line: str) -> tuple[str, Sample] | None:
        """Name and sample of any line; None if it is none."""
        found = _LINE.fullmatch(line)
        if found is None:
            return None
        name, text, number = found.groups("")
        try:
            value = float(number)
        except ValueError:
            return None
        labels = self._known.get(text)
        if labels is None:
            if len(self._known) >= REMEMBERED:
                self._known.clear()
            labels = self._known[text] = _labels(text)
        return name, Sample(labels, value)


def _labels(text: str) -> dict[str, str]:
    return {
        name: _unescaped(quoted) if "\\" in quoted else quoted or bare
        for name, quoted, bare in _ONE_LABEL.findall(text)
    }


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], text)
