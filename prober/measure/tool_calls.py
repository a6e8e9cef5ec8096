"""Tool calls of one answer, assembled from the pieces in a stream."""

import re
from dataclasses import dataclass, field
from typing import NamedTuple

from prober.measure.printable import MAX_NAME_CHARS

MAX_CALLS = 64
MAX_ARGUMENT_CHARS = 1 << 16  # in all calls: parsed in one step of about a millisecond
AN_OBJECT, NO_TEXT = "(an object)", "(no text)"
_STRUCTURE = re.compile(r'["\\{}\[\]]')


def argument_text(arguments: object) -> str:
    """The arguments of a call, or a piece of them, as text. A value of another type, which no API allows, becomes text that is no JSON,
    or "" if it is empty: it is not sent again."""
    if isinstance(arguments, str):
        return arguments
    return "" if not arguments else AN_OBJECT if isinstance(arguments, dict) else NO_TEXT


class CallPiece(NamedTuple):
    """A piece of a tool call.

    place: number or id of the call in the answer; None if the server sends none
    id: id of the call, "" if the piece has none
    rest: the complete arguments, repeated at their end and used only if no earlier piece had any; None in earlier pieces
    """

    place: int | str | None
    id: str = ""
    name: str = ""
    arguments: str = ""
    rest: str | None = None


@dataclass(slots=True)
class ToolCall:
    """A tool call.

    first_ns: arrival of its first piece
    closed_ns: arrival of the piece that closes the object or list of the arguments; None before
    """

    id: str
    first_ns: int
    name: str = ""
    closed_ns: int | None = None
    _texts: list[str] = field(default_factory=list)
    _depth: int = 0
    _is_in_text: bool = False
    _is_escaped: bool = False

    def add(self, at_ns: int, piece: CallPiece) -> None:
        """Add a piece. A repeated name is ignored."""
        if piece.name != self.name and len(self.name) < MAX_NAME_CHARS:
            self.name += piece.name
        if piece.id and piece.id != self.id:
            self.id = ""  # each piece has a new one: it does not identify the call
        text = piece.arguments or ("" if self._texts else piece.rest or "")
        if text:
            self._texts.append(text)
            if self.closed_ns is None and self._closes(text):
                self.closed_ns = at_ns

    @property
    def arguments(self) -> str:
        """The arguments so far."""
        return "".join(self._texts)

    def _closes(self, text: str) -> bool:
        """True if `text`, which follows the earlier texts, closes the outermost bracket of the arguments."""
        escaped_at = 0 if self._is_escaped else -1
        for match in _STRUCTURE.finditer(text):
            mark, at = match[0], match.start()
            if at == escaped_at:
                continue
            if mark == "\\":
                escaped_at = at + 1
            elif mark == '"':
                self._is_in_text = not self._is_in_text
            elif not self._is_in_text:
                self._depth += 1 if mark in "{[" else -1
                if self._depth == 0:
                    return True
        self._is_escaped = escaped_at == len(text)
        return False


@dataclass(slots=True)
class ToolCalls:
    """The tool calls of an answer: all are counted, the first MAX_CALLS stored. A call begins with its name."""

    count: int = 0
    stored: list[ToolCall] = field(default_factory=list)
    _by_place: dict[int | str | None, ToolCall] = field(default_factory=dict)
    _chars: int = 0

    def add(self, at_ns: int, piece: CallPiece) -> bool:
        """Add a piece that arrived at `at_ns`. Returns True if it begins a call."""
        call = self._by_place.get(piece.place)
        begins = call is None or self._begins_another(call, piece)
        if call is None or begins:
            if not piece.name:
                return False  # only an id, or a piece of something else
            self.count += 1
            if len(self.stored) >= MAX_CALLS:
                return True
            call = self._by_place[piece.place] = ToolCall(piece.id, at_ns)
            self.stored.append(call)
        self._chars += len(piece.arguments) + len(piece.rest or "")
        if self._chars <= MAX_ARGUMENT_CHARS:
            call.add(at_ns, piece)
        return begins

    @property
    def is_complete(self) -> bool:
        """True if all pieces of the calls are stored."""
        return self.count <= MAX_CALLS and self._chars <= MAX_ARGUMENT_CHARS

    @staticmethod
    def _begins_another(call: ToolCall, piece: CallPiece) -> bool:
        """True if the piece has the place of a complete call but another id and name: some servers number all calls 0."""
        return bool(call.closed_ns is not None and call.id and piece.id and piece.id != call.id and piece.name)
