"""Event-stream reading as WHATWG's HTML standard words it (sections 9.2.5 and 9.2.6), for comparison.

Independent of the prober's decoder, complete streams only, and as slow as the text.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Event:
    """A dispatched event. type: "message" unless an `event` field named it."""

    type: str
    data: str


def lines(text: str) -> list[str]:
    """Lines of a stream, each ended by CRLF, LF or CR; what follows the last line end is not a line."""
    found, line, position = [], "", 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "\r":
            if text[position : position + 1] == "\n":
                position += 1
        elif character != "\n":
            line += character
            continue
        found.append(line)
        line = ""
    return found


def interpret(body: bytes) -> list[Event]:
    """Events of a stream that ends here. A pending event is discarded, as the standard says."""
    text = body.decode("utf-8", "replace")
    if text.startswith("\ufeff"):
        text = text[1:]
    dispatched: list[Event] = []
    data, event_type = "", ""
    for line in lines(text):
        if line == "":
            if data != "":
                if data.endswith("\n"):
                    data = data[:-1]
                dispatched.append(Event(event_type or "message", data))
            data, event_type = "", ""
            continue
        if line.startswith(":"):
            continue
        if ":" in line:
            field, value = line.split(":", 1)
            if value.startswith(" "):
                value = value[1:]
        else:
            field, value = line, ""
        if field == "event":
            event_type = value
        elif field == "data":
            data += value + "\n"
        # `id` and `retry` concern reconnection; other fields are ignored
    return dispatched
