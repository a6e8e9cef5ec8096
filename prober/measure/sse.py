"""Server-sent events, bytes in, events out (WHATWG HTML, section 9.2, read tolerantly).

Rules held here: lines end with LF, CR or CRLF, mixed; a leading byte-order mark is dropped; `data:` may lack its space;
several `data:` lines join with LF; comments are counted, never shown; one line, and one event, may not pass `max_line` bytes.
"""

from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One dispatched event. `name` is empty for the default kind; `complete` is False if the stream ended inside it."""

    name: bytes
    data: bytes
    complete: bool = True


class LineTooLong(ValueError):
    """A line or an event passed the decoder's bound: no engine sends such a line, and keeping it would cost the prober its memory.

    events: those of the same piece that were complete before it
    """

    def __init__(self, text: str, events: list[Event]) -> None:
        super().__init__(text)
        self.events = events


class SseDecoder:
    """Incremental decoder: `feed` any split of the body, `finish` once at its end."""

    __slots__ = ("_data", "_held", "_idle", "_max_line", "_name", "_rest", "_skip_lf", "_start", "comments")

    def __init__(self, max_line: int = 1 << 20) -> None:
        self.comments = 0
        self._max_line = max_line
        self._rest = bytearray()  # of a line without its end: grows in place, however small the pieces are
        self._data: list[bytes] = []
        self._held = 0  # bytes of it
        self._name = b""
        self._skip_lf = False
        self._start = True
        self._idle = False  # between events: nothing is held back

    def feed(self, data: bytes) -> list[Event]:
        """Events completed by `data`, in order. Raises LineTooLong."""
        end = len(data) - 2
        if (
            self._idle
            and data.find(b"\n") == end
            and data[:6] == b"data: "
            and b"\r" not in data
            and end <= self._max_line
            and data[-1:] == b"\n"
        ):
            return [Event(b"", data[6:end])]  # one whole event in one piece, as nearly every piece is
        if self._start:
            data = bytes(self._rest) + data
            self._rest.clear()
            if len(data) < len(_BOM) and _BOM.startswith(data):
                self._rest += data
                return []
            self._start = False
            data = data.removeprefix(_BOM)
        if self._skip_lf and data:
            self._skip_lf = False
            data = data.removeprefix(b"\n")
        if b"\r" in data:
            # A CR ends its line at once; the LF that may follow in the next piece is then skipped.
            self._skip_lf = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = data.split(b"\n")
        if self._rest and len(lines) > 1:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += lines.pop()
        events: list[Event] = []
        for line in lines:
            if line:
                self._line(line, events)
            else:
                self._dispatch(events, complete=True)
        if len(self._rest) > self._max_line:
            raise LineTooLong(f"a line of more than {self._max_line} bytes", events)
        self._idle = not (self._rest or self._data or self._name or self._skip_lf)
        return events

    @property
    def pending(self) -> list[bytes]:
        """Data lines of the event whose blank line has not come yet."""
        return self._data

    def finish(self) -> list[Event]:
        """What was pending when the body ended: one event marked incomplete, or nothing. Raises LineTooLong."""
        events: list[Event] = []
        if self._rest:
            self._line(bytes(self._rest), events)
            self._rest.clear()
        self._dispatch(events, complete=False)
        return events

    def _line(self, line: bytes, events: list[Event]) -> None:
        if len(line) > self._max_line:
            raise LineTooLong(f"a line of more than {self._max_line} bytes", events)
        if line.startswith(b"data"):
            self._held += len(line)
            if self._held > self._max_line:
                raise LineTooLong(f"an event of more than {self._max_line} bytes", events)
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line[5:6] == b" " else line[5:])
            return
        field, _, value = line.partition(b":")
        if not field:
            self.comments += 1
        elif field == b"data":
            self._data.append(b"")
        elif field == b"event":
            self._name = value.removeprefix(b" ")

    def _dispatch(self, events: list[Event], *, complete: bool) -> None:
        if self._data:
            events.append(Event(self._name, b"\n".join(self._data), complete))
            self._data = []
        self._name, self._held = b"", 0
