"""The prober's reading of event streams: independent of how the bytes are split, and as WHATWG's text words it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import httptools
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from prober.measure.recording import Recording
from prober.measure.sse import STRAY, SseDecoder
from tests.wire.case import Case
from tests.wire.table import read_cases
from tests.wire.whatwg import Event, interpret, lines

INTERESTING = (
    *(
        b"\n",
        b"\r",
        b"\r\n",
        b"\n\n",
        b"\r\r",
        b"\n\r",
        b":",
        b": ",
        b" ",
        b"\xef\xbb\xbf",
        b"\xff",
        b"\x00",
        b"\xe2\x82",
    ),
    *(
        b"data",
        b"data:",
        b"data: ",
        b"data: x\n\n",
        b"event: ping\n",
        b"event:\n",
        b"id: 1\n",
        b"retry: 5\n",
        b"\ndata\n\n",
    ),
    *(
        b"dataset: x\n",
        b"Data: x\n",
        b" data: x\n",
        b"eventual: x\n",
        b"data:\n\n",
        b": comment\n",
        "\u2028\u0085".encode(),
    ),
)


class _Body:
    """Collects the body of a response for httptools."""

    def __init__(self) -> None:
        self.data = b""

    def on_body(self, data: bytes) -> None:
        self.data += data


def body(case: Case) -> bytes:
    """The body that a case's server writes."""
    collected = _Body()
    parser = httptools.HttpResponseParser(collected)
    with suppress(httptools.HttpParserError):  # bytes behind the end of the answer
        for step in case.script:
            if isinstance(step, bytes):
                parser.feed_data(step)
    return collected.data


BY_NAME = {case.name: case for case in read_cases()}
STREAMS = {
    name: body(BY_NAME[name])
    for name in (
        "CR line ends",
        "line ends of all three kinds mixed",
        "byte order mark before the first event",
        "JSON over several data lines",
        "U+2028 and U+0085 inside a line",
        "[DONE] with spaces around it",
        "llama.cpp's timings without usage",
    )
}


@dataclass(frozen=True)
class Read:
    """All that a recording tells of a body, apart from times."""

    fields: tuple[Any, ...]


def read(*pieces: bytes) -> Read:
    """Feed a recording, each piece at its own time."""
    recording = Recording()
    for index, piece in enumerate(pieces):
        recording.feed(index + 1, piece)
    recording.finish()
    return Read(
        (
            recording.answer.chunks,
            recording.answer.finish_reason,
            recording.answer.usage,
            recording.answer.text,
            recording.done,
            recording.error,
            recording.malformed,
            recording.stray_text,
            recording.answer.model,
        )
    )


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_reads_the_same_at_every_split_position_and_byte_by_byte(name: str) -> None:
    """TCP splits anywhere: between any two bytes, also inside a UTF-8 character or a line end."""
    data = STREAMS[name]
    whole = read(data)
    split = [position for position in range(1, len(data)) if read(data[:position], data[position:]) != whole]
    assert not split, f"reads otherwise when split at {split[:10]} of {len(data)}"
    assert read(*(data[index : index + 1] for index in range(len(data)))) == whole


def decoded(*pieces: bytes) -> list[Event]:
    """Complete events of the prober's decoder, without stray lines. Those without data may be dispatched or not."""
    decoder = SseDecoder()
    events = [event for piece in pieces for event in decoder.feed(piece)]
    events += decoder.finish()
    return [
        Event(event.name.decode("utf-8", "replace") or "message", event.data.decode("utf-8", "replace"))
        for event in events
        if event.complete and event.data and event.name != STRAY
    ]


@st.composite
def mutated_streams(draw: st.DrawFn) -> tuple[bytes, ...]:
    """A good stream with insertions, deletions and copies, cut into pieces."""
    data = bytearray(draw(st.sampled_from(sorted(STREAMS.values()))))
    for _ in range(draw(st.integers(0, 8))):
        position = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 3)):
            case 0:
                data[position:position] = draw(st.sampled_from(INTERESTING))
            case 1:
                del data[position : position + draw(st.integers(1, 30))]
            case 2:
                data[position:position] = data[position : position + draw(st.integers(1, 60))]
            case _:
                data[position:position] = draw(st.binary(max_size=4))
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    return tuple(bytes(data[start:end]) for start, end in zip((0, *cuts), (*cuts, len(data)), strict=True))


@settings(max_examples=100, deadline=None)
@given(mutated_streams())
def test_a_mutated_stream_has_the_events_that_the_standard_says(pieces: tuple[bytes, ...]) -> None:
    """The reference is an independent reader, written from WHATWG's text. Lines of llama.cpp's field `error` are not in it.

    `[DONE]` ends an answer as soon as its line ends, so events are compared up to it.
    """
    assume(not any(line.partition(":")[0] == "error" for line in lines(b"".join(pieces).decode("utf-8", "replace"))))
    expected = [event for event in interpret(b"".join(pieces)) if event.data]
    assert before_done(decoded(*pieces)) == before_done(expected)


def before_done(events: list[Event]) -> list[Event]:
    """The events before `[DONE]`."""
    return list(takewhile(lambda event: not event.data.lstrip().startswith("[DONE]"), events))


@pytest.mark.parametrize(
    ("stream", "events"),
    [
        ("data: YHOO\ndata: +2\ndata: 10\n\n", ["YHOO\n+2\n10"]),
        (": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n", ["first event", "second event"]),
        ("data\n\ndata\ndata\n\ndata:", ["", "\n"]),
        ("data:test\n\ndata: test\n\n", ["test", "test"]),
    ],
)  # fmt: skip
def test_the_reference_reads_the_examples_of_the_standard(stream: str, events: list[str]) -> None:
    """The four examples of section 9.2.6."""
    assert [event.data for event in interpret(stream.encode())] == events
