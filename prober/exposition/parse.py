"""Fast, tolerant parser for the metrics pages of other programs.

Supports the text formats 0.0.4 and 1.0.0, OpenMetrics served as text (exemplars, `# EOF`), CRLF, and MLC's own text (tabs, label
values without quotes). An invalid line is skipped and counted. `_created` samples are dropped: they are times, not measurements.
Types are ignored: some pages have histograms named `_total`, so the engine tables define what a name is.

prometheus-client's parser is not used: it takes 8 ms for the 629 lines of a vLLM page. Here only the requested names are stored, and
label texts, which repeat at every scrape, are parsed once per `Parser`.
"""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

MAX_SAMPLES = 50_000  # stored for one page: some 30 MB
MAX_LINE_BYTES = 1 << 20
SLICE_BYTES = 16 << 10  # decoded at a time, so that a page is not in memory twice
MAX_CACHED_LABEL_TEXTS = 8192  # the cache is cleared when it is full
_MAX_QUOTED_CHARS = 120

# All quantifiers are possessive, so that no line causes backtracking. MLC's label values have no quotes.
_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*+"
_LABEL = r'[ \t,]*+([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+(?:"((?:[^"\\]++|\\.)*+)"|([^\s,"{}]++))[ \t]*+'
_LABELS = _LABEL.replace("([", "(?:[").replace('"((?:', '"(?:(?:')
_LINE = re.compile(
    rf"[ \t]*+({_NAME})[ \t]*+(?:\{{((?:{_LABELS})*+,?[ \t]*+)\}}[ \t]*+|(?<=[ \t]))"
    r"([^\s#_{}]++)(?:[ \t]++-?[0-9.eE+]++)?+[ \t]*+(?:#.*)?+\r?"
)
_ONE_LABEL = re.compile(_LABEL)
_ESCAPE = re.compile(r"\\(.)")


class PageTooLarge(ValueError):
    """A metrics page exceeds a limit. None of it is used, since sums over a part of its series would be wrong."""


class Sample(NamedTuple):
    """A value of one series. Samples with equal labels share the mapping: do not modify it."""

    labels: Mapping[str, str]
    value: float


@dataclass(slots=True)
class Page:
    """A parsed metrics page. samples: by name, in the order of the page

    lines: number of non-empty lines except comments, including those whose names were not requested
    broken: number of invalid lines
    first_broken: the first invalid line, shortened
    eof: the page ended with OpenMetrics' `# EOF`
    stored: number of samples
    """

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    lines: int = 0
    broken: int = 0
    first_broken: str = ""
    eof: bool = False
    stored: int = 0


class Parser:
    """Parses the metrics pages of one server repeatedly.

    names: sample names to parse (`x_bucket`, `x_sum`, … are separate names); None: all. Lines of other names are not checked, so they
        do not count as broken.
    """

    def __init__(self, names: Container[str] | None = None) -> None:
        self.names = names
        self._known: dict[str, Mapping[str, str]] = {}

    def parse(self, body: bytes, size: int = SLICE_BYTES) -> Page:
        """Parses a page. Invalid UTF-8 becomes U+FFFD. size: bytes that are decoded at a time. Raises PageTooLarge."""
        page = Page()
        start = 0
        while start < len(body):
            end = body.find(b"\n", start + size)
            end = len(body) if end < 0 else end + 1
            if end - start > size + MAX_LINE_BYTES:
                raise PageTooLarge(f"it has a line of more than {MAX_LINE_BYTES >> 10} KiB")
            self._read(body[start:end].decode("utf-8", "replace"), page)
            if page.stored > MAX_SAMPLES:
                raise PageTooLarge(f"it has more than {MAX_SAMPLES:,} series")
            start = end
        return page

    def _read(self, text: str, page: Page) -> None:
        names, samples = self.names, page.samples
        for line in text.split("\n"):
            if not line or line[0] == "#" or line.isspace():
                page.eof = page.eof or line.startswith("# EOF")
                continue
            page.lines += 1
            name, _, remainder = line.partition("{")
            if names is not None and name not in names and line.split(None, 1)[0] not in names:
                continue  # most lines of most pages end here
            if (sample := self._cached(name, remainder)) is not None and name in samples:
                samples[name].append(sample)
                page.stored += 1
                continue
            parsed = self._line(line)
            if parsed is None:
                page.broken += 1
                page.first_broken = page.first_broken or line[:_MAX_QUOTED_CHARS]
            elif not parsed[0].endswith("_created"):
                samples.setdefault(parsed[0], []).append(parsed[1])
                page.stored += 1

    def _cached(self, name: str, rest: str) -> Sample | None:
        """The sample on a line if its label text is cached and only a number follows, else None. rest: the line after `name{`"""
        text, _, number = rest.rpartition("} ")
        labels = self._known.get(text)
        if not labels or "_" in number:
            return None
        try:
            return Sample(labels, float(number))
        except ValueError:
            return None

    def _line(self, line: str) -> tuple[str, Sample] | None:
        """Returns name and sample of a line, None if the line is invalid."""
        match = _LINE.fullmatch(line)
        if match is None:
            return None
        name, text, number = match.groups("")
        try:
            value = float(number)
        except ValueError:
            return None
        labels = self._known.get(text)
        if labels is None:
            if len(self._known) >= MAX_CACHED_LABEL_TEXTS:
                self._known.clear()
            labels = self._known[text] = {
                name: _ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], quoted) or bare
                for name, quoted, bare in _ONE_LABEL.findall(text)
            }
        return name, Sample(labels, value)
