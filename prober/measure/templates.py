"""Templates of a target's chunks: the chunks of a stream differ in a few values, and only those are read.

A template is learnt from two chunks that were parsed in full. Their JSON is cut at its values; where the values differ, the template
has a gap, and the rest must be the same byte for byte. Each gap is tried with other values, parsed in full: it is the text of the
chunk, one of its token counts, or without influence. A gap of another kind gives no template. A later chunk that differs in more
places widens the template. No format is known beforehand, and whatever does not match is parsed in full:

    templates = Templates(chat.parse_event)
    for payload in payloads:
        templates.learn(b"", payload)
    chunks = templates.read([(at_ns, b"data: " + payload + b"\n\n")])
"""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import orjson

from prober.measure.chat import Chunk, Usage
from prober.measure.payload import Malformed

MAX_TEMPLATES = 4  # reasoning and answer have one each
MAX_PAYLOAD_BYTES = 1024  # to compile a pattern takes some 0.8 µs a byte
MAX_NAME_BYTES = 64
MIN_PAUSE, MAX_PAUSE = 2, 4096  # chunks parsed in full between two attempts to learn; doubled with each attempt
_TOTAL_FIELD = Usage._fields.index("completion_tokens")
_VALUE = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*')
# Values that match a gap. A count is within `payload.MAX_COUNTED_TOKENS` and not 0, which parsers treat differently. A text is decoded
# strictly afterwards; a gap without influence takes only what is valid in every JSON document.
_TEXT_PATTERN, _COUNT_PATTERN = rb'"([^"\x00-\x1f]++)"', rb"([1-9][0-9]{0,8}+)"
_STRING_PATTERN = rb'"[ !#-\[\]-~]*+"'
_INTEGER_PATTERN = rb"[1-9][0-9]{0,14}+"
_NUMBER_PATTERN = rb"-?(?:0|[1-9][0-9]{0,14}+)(?:\.[0-9]{1,20}+)?(?:[eE][-+]?[0-9]{1,2}+)?"
# Tried in a gap: a text like no other, and words with which parsers compare strings.
_TRIED_STRINGS = ("\x7f", "error", "thinking", "reasoning", "tool_use", "stop")
_TRIED_COUNTS = (987_654_321, 1)


@dataclass(frozen=True, slots=True)
class _Sample:
    """A chunk's JSON, cut at its strings and numbers. name: of its event; separators: shape (values + 1,)."""

    name: bytes
    separators: tuple[bytes, ...]
    values: tuple[bytes, ...]

    @classmethod
    def cut(cls, name: bytes, payload: bytes) -> "_Sample":
        return cls(name, tuple(_VALUE.split(payload)), tuple(_VALUE.findall(payload)))

    def is_string(self, index: int) -> bool:
        return self.values[index][:1] == b'"'

    def is_key(self, index: int) -> bool:
        return self.separators[index + 1].lstrip()[:1] == b":"

    def gaps(self, other: "_Sample") -> frozenset[int] | None:
        """Indices of the values in which the two differ; None if they differ in more than values."""
        if (self.name, self.separators) != (other.name, other.separators):
            return None
        gaps = frozenset(i for i, value in enumerate(self.values) if value != other.values[i])
        is_same_form = all(self.is_string(i) == other.is_string(i) and not self.is_key(i) for i in gaps)
        return gaps if is_same_form else None

    def filled(self, values: dict[int, bytes]) -> bytes:
        """The JSON with other values at these indices."""
        pieces = [self.separators[0]]
        for index, value in enumerate(self.values):
            pieces += (values.get(index, value), self.separators[index + 1])
        return b"".join(pieces)


class ReadChunks(NamedTuple):
    """Consecutive chunks with content, alike but for their texts and usages.

    chunk: one of them, with the usage of the last
    texts: shape (chunks,)
    totals: tokens of the answer so far, shape (chunks,), or empty if the chunks do not tell
    bytes, lines: of all chunks, and of one
    """

    chunk: Chunk
    texts: list[str]
    totals: list[int]
    bytes: int
    lines: int


@dataclass(frozen=True, slots=True)
class _Template:
    """A pattern of whole events.

    text_group: of the pattern
    total_group: of the tokens of the answer so far; 0 if the chunks do not tell or all tell the same
    count_groups: pairs (group, index into Usage)
    """

    sample: _Sample
    gaps: frozenset[int]
    chunk: Chunk
    pattern: re.Pattern[bytes]
    text_group: int
    total_group: int
    count_groups: tuple[tuple[int, int], ...]

    def read(self, pieces: Sequence[tuple[int, bytes]]) -> "ReadChunks | None":
        """The chunks of the first pieces that match and whose text is valid; None if there is none."""
        texts: list[str] = []
        totals: list[int] = []
        size = 0
        fullmatch, text_group, total_group = self.pattern.fullmatch, self.text_group, self.total_group
        for _, piece in pieces:
            if (match := fullmatch(piece)) is None:
                break
            text = match[text_group]
            try:
                texts.append(orjson.loads(b'"' + text + b'"') if b"\\" in text else text.decode())
            except ValueError:
                break
            if total_group:
                totals.append(int(match[total_group]))
            size += len(piece)
            last = match
        if not texts:
            return None
        usage = self.chunk.usage
        if usage is not None:
            counts = list(usage)
            for group, field in self.count_groups:
                counts[field] = int(last[group])
            usage = Usage._make(counts)
            if not total_group and usage.completion_tokens:
                totals = [usage.completion_tokens] * len(texts)
        return ReadChunks(self.chunk._replace(usage=usage), texts, totals, size, 3 if self.sample.name else 2)


class Templates:
    """The templates of one target, the last used first. parse: event name and payload to a chunk; raises Malformed."""

    def __init__(self, parse: Callable[[bytes, bytes], Chunk]) -> None:
        self._parse = parse
        self._templates: list[_Template] = []
        self._last: tuple[bytes, bytes] | None = None
        self._unmatched, self._pause = 0, MIN_PAUSE

    @property
    def is_empty(self) -> bool:
        """Whether nothing was learnt yet."""
        return not self._templates

    def read(self, pieces: Sequence[tuple[int, bytes]]) -> "ReadChunks | None":
        """The chunks of the first pieces, if the same template matches them; None if none matches the first one.

        pieces: of the body, with their times of arrival. A piece that matches is one complete event.
        """
        for index, template in enumerate(self._templates):
            if (read := template.read(pieces)) is not None:
                if index:
                    self._templates.insert(0, self._templates.pop(index))
                return read
        return None

    def learn(self, name: bytes, payload: bytes) -> None:
        """Learn from an event with content that matched no template, now and then."""
        last, self._last = self._last, (name, payload)
        self._unmatched += 1
        if self._unmatched < self._pause or last is None or not (_is_plain(name, payload) and _is_plain(*last)):
            return
        self._unmatched, self._pause = 0, min(2 * self._pause, MAX_PAUSE)
        sample = _Sample.cut(name, payload)
        for template in self._templates:
            if (more := template.sample.gaps(sample)) is not None:
                if (wider := self._template(template.sample, template.gaps | more)) is not None:
                    self._templates.remove(template)
                    self._templates.insert(0, wider)
                return
        gaps = sample.gaps(_Sample.cut(*last))
        if gaps and (template_ := self._template(sample, gaps)) is not None:
            self._templates = [template_, *self._templates[: MAX_TEMPLATES - 1]]

    def _template(self, sample: _Sample, gaps: frozenset[int]) -> _Template | None:
        """The template of a sample with these gaps; None if a gap has an influence that is not known."""
        with suppress(Malformed):
            chunk = self._parse(sample.name, sample.filled({}))
            if chunk.calls:  # they are put together from every piece
                return None
            patterns: dict[int, bytes] = {}
            text_groups: list[int] = []
            count_groups: list[tuple[int, int]] = []
            for index in sorted(gaps):
                group = 1 + len(text_groups) + len(count_groups)
                if self._is_idle(sample, chunk, index):
                    patterns[index] = _idle_pattern(sample.values[index])
                elif sample.is_string(index) and self._is_text(sample, chunk, index):
                    patterns[index] = _TEXT_PATTERN
                    text_groups.append(group)
                elif (field := self._count_field(sample, chunk, index)) is not None:
                    patterns[index] = _COUNT_PATTERN
                    count_groups.append((group, field))
                else:
                    return None
            if len(text_groups) == 1:
                pattern = _pattern(sample, patterns)
                total_group = next((group for group, field in count_groups if field == _TOTAL_FIELD), 0)
                return _Template(sample, gaps, chunk, pattern, text_groups[0], total_group, tuple(count_groups))
        return None

    def _is_idle(self, sample: _Sample, chunk: Chunk, index: int) -> bool:
        """Whether the value has no influence on the chunk."""
        tried = map(_quoted, _TRIED_STRINGS) if sample.is_string(index) else (b"%d" % n for n in _TRIED_COUNTS)
        return all(self._parse(sample.name, sample.filled({index: value})) == chunk for value in tried)

    def _is_text(self, sample: _Sample, chunk: Chunk, index: int) -> bool:
        """Whether the value is the text of the chunk and nothing else."""
        return all(
            self._parse(sample.name, sample.filled({index: _quoted(text)})) == chunk._replace(text=text)
            for text in _TRIED_STRINGS
        )

    def _count_field(self, sample: _Sample, chunk: Chunk, index: int) -> int | None:
        """Index into Usage of the count that the value is and nothing else."""
        if chunk.usage is None or sample.is_string(index):
            return None
        read = [self._parse(sample.name, sample.filled({index: b"%d" % n})) for n in _TRIED_COUNTS]
        for field in range(len(Usage._fields)):
            usages = [Usage._make((*chunk.usage[:field], n, *chunk.usage[field + 1 :])) for n in _TRIED_COUNTS]
            if read == [chunk._replace(usage=usage) for usage in usages]:
                return field
        return None


def _is_plain(name: bytes, payload: bytes) -> bool:
    """Whether an event of this payload is one line of data that begins with JSON."""
    return (
        payload[:1] == b"{"
        and b"\n" not in payload
        and len(payload) <= MAX_PAYLOAD_BYTES
        and len(name) <= MAX_NAME_BYTES
    )


def _pattern(sample: _Sample, patterns: dict[int, bytes]) -> re.Pattern[bytes]:
    """The pattern of a piece that is one event of this form."""
    constant = {i: re.escape(value) for i, value in enumerate(sample.values)}
    escaped = _Sample(sample.name, tuple(map(re.escape, sample.separators)), sample.values)
    line = b"event: ?" + re.escape(sample.name) + rb"\r?\n" if sample.name else b""
    return re.compile(line + b"data: ?" + escaped.filled(constant | patterns) + rb"\r?\n\r?\n")


def _idle_pattern(value: bytes) -> bytes:
    """The pattern of a gap without influence that has had this value."""
    if value[:1] == b'"':
        return _STRING_PATTERN
    return _INTEGER_PATTERN if value.isdigit() else _NUMBER_PATTERN


def _quoted(text: str) -> bytes:
    return orjson.dumps(text)
