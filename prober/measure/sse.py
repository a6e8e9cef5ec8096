"""Sans-I/O decoder of server-sent events (WHATWG HTML, section 9.2), tolerant of deviations.

Lines end with LF, CR or CRLF, also mixed. A leading byte-order mark is dropped. The space after `data:` is optional. Several `data:`
lines are joined with LF. Comments are dropped. A line or an event is limited to `max_line_bytes`.

Three rules are not in the standard. `[DONE]` is an event as soon as its line ends, without the blank line: no further data line can
change its meaning, and some servers omit the blank line and keep the connection open. `error: {...}` is an event named
error, because llama.cpp once sent errors so. The first line that is no field is an event named STRAY, because failing servers write
plain text into a stream.
"""

from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"
DONE = b"[DONE]"
MAX_DONE_BYTES = 64  # of data in which `[DONE]` is searched, with leading white space
MAX_STRAY_BYTES = 4096
STRAY = b"\0stray"  # no line can produce this name


def is_done(data: bytes) -> bool:
    """True if the data of an event is `[DONE]`; like OpenAI's SDKs, ignores what follows it."""
    return data[:MAX_DONE_BYTES].lstrip().startswith(DONE)


class SseEvent(NamedTuple):
    """A dispatched event. `name` is empty for the default type; `complete` is False if the stream ended inside the event."""

    name: bytes
    data: bytes
    complete: bool = True


class LineTooLong(ValueError):
    """A line or an event exceeds the decoder's limit. No engine sends such a line, and buffering it would exhaust memory.

    events: the complete events before it in the same piece
    """

    def __init__(self, text: str, events: list[SseEvent]) -> None:
        super().__init__(text)
        self.events = events


class SseDecoder:
    """Incremental decoder: call `feed` with the pieces of the body, split anywhere, then `finish` once.

    is_between_events: everything fed so far belongs to complete events; False before the first
    """

    def __init__(self, max_line_bytes: int = 256 << 10) -> None:
        self._max_line_bytes = max_line_bytes
        self._partial_line = bytearray()  # grows in place, so that small pieces are not copied repeatedly
        self._data: list[bytes] = []  # data lines of the current event
        self._data_bytes = 0
        self._name = b""
        self._skip_lf = False
        self._has_stray = False
        self._at_start = True
        self.is_between_events = False

    def feed(self, data: bytes) -> list[SseEvent]:
        """Decode `data` and return the events that it completes, in order. Raises LineTooLong."""
        end = len(data) - 2
        if (
            self.is_between_events
            and data.find(b"\n") == end
            and data[:6] == b"data: "
            and b"\r" not in data
            and end <= self._max_line_bytes
            and data[-1:] == b"\n"
        ):
            return [SseEvent(b"", data[6:end])]  # fast path for the usual case: one complete event in one piece
        if self._at_start:
            data = bytes(self._partial_line) + data
            self._partial_line.clear()
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._partial_line += data
                return []
            self._at_start = False
            data = data.removeprefix(_BOM)
        if self._skip_lf and data:
            self._skip_lf = False
            data = data.removeprefix(b"\n")
        if b"\r" in data:
            # A CR ends its line immediately; an LF that follows in the next piece is then skipped.
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        if self._partial_line and len(lines) > 1:
            lines[0] = bytes(self._partial_line) + lines[0]
            self._partial_line.clear()
        self._partial_line += lines.pop()
        events: list[SseEvent] = []
        for line in lines:
            if line:
                self._line(line, events)
            else:
                self._dispatch(events, complete=True)
        if len(self._partial_line) > self._max_line_bytes:
            raise LineTooLong(f"a line of more than {self._max_line_bytes} bytes", events)
        self.is_between_events = not (self._partial_line or self._data or self._name or self._skip_lf)
        return events

    def finish(self) -> list[SseEvent]:
        """End the body. Returns the pending event, marked incomplete, if any. Raises LineTooLong."""
        events: list[SseEvent] = []
        if self._partial_line:
            self._line(bytes(self._partial_line), events)
            self._partial_line.clear()
        self._dispatch(events, complete=False)
        return events

    def _line(self, line: bytes, events: list[SseEvent]) -> None:
        if len(line) > self._max_line_bytes:
            raise LineTooLong(f"a line of more than {self._max_line_bytes} bytes", events)
        if line.startswith(b"data"):
            self._data_bytes += len(line)
            if self._data_bytes > self._max_line_bytes:
                raise LineTooLong(f"an event of more than {self._max_line_bytes} bytes", events)
        if line.startswith(b"data:"):
            data = line[6:] if line[5:6] == b" " else line[5:]
            if data[:1] != b"{" and not self._data and is_done(data):
                events.append(SseEvent(self._name, data))
            else:
                self._data.append(data)
            return
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(b"")
        elif field == b"event":
            self._name = value.removeprefix(b" ")
        elif field == b"error":
            self._name = b"error"
            self._data.append(value.removeprefix(b" "))
        elif field not in (b"", b"id", b"retry") and not self._has_stray:
            self._has_stray = True
            events.append(SseEvent(STRAY, line[:MAX_STRAY_BYTES]))

    def _dispatch(self, events: list[SseEvent], *, complete: bool) -> None:
        if self._data:
            events.append(SseEvent(self._name, b"\n".join(self._data), complete))
            self._data = []
        self._name, self._data_bytes = b"", 0
