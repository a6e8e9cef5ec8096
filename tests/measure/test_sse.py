"""SSE decoder: the events do not depend on how the body is split."""

import pytest

from prober.measure.sse import LineTooLong, SseDecoder, SseEvent

VECTORS = {
    "LF": (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
    "CRLF": (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
    "CR": (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
    "mixed ends": (b"data: a\r\n\ndata: b\r\r\ndata: c\n\r\n", [b"a", b"b", b"c"]),
    "comments": (b": ping\n\n:\n\ndata: a\n: in between\n\n", [b"a"]),
    "several data lines": (b"data: a\ndata: b\ndata\n\n", [b"a\nb\n"]),
    "byte-order mark": (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
    "no space": (b"data:a\n\ndata:  b\n\n", [b"a", b" b"]),
    "space behind": (b'data: {"a":1} \n\n', [b'{"a":1} ']),
    "other fields": (b"id: 7\nretry: 3\ndata: a\n\n", [b"a"]),
    "a blank between events": (b"\n\ndata: a\n\n\n\ndata: b\n\n", [b"a", b"b"]),
}


def feed(decoder: SseDecoder, *pieces: bytes) -> list[SseEvent]:
    return [event for piece in pieces for event in decoder.feed(piece)]


def decode(*pieces: bytes) -> list[SseEvent]:
    decoder = SseDecoder()
    return feed(decoder, *pieces) + decoder.finish()


@pytest.mark.parametrize("name", VECTORS)
def test_one_piece_and_single_bytes_give_the_same_events(name: str) -> None:
    """Each vector decodes to its events in one piece and byte by byte."""
    body, expected = VECTORS[name]
    assert [event.data for event in decode(body)] == expected
    assert decode(*(body[i : i + 1] for i in range(len(body)))) == decode(body)


def test_an_event_name_applies_to_one_event() -> None:
    """The event after a named event has the default type again."""
    assert decode(b"event: ids\ndata: 1\n\ndata: 2\n\n") == [SseEvent(b"ids", b"1"), SseEvent(b"", b"2")]


def test_an_event_cut_by_the_end_is_marked_incomplete() -> None:
    """The event pending at the end of the body is returned with `complete` False."""
    assert decode(b"data: a\n\ndata: {cut") == [SseEvent(b"", b"a"), SseEvent(b"", b"{cut", False)]


@pytest.mark.parametrize("end", [b"", b"\n\n"])
def test_a_line_over_the_limit_raises(end: bytes) -> None:
    """A line over the limit raises LineTooLong whether it has ended or not, so that it cannot exhaust memory."""
    decoder = SseDecoder(max_line_bytes=1000)
    decoder.feed(b"data: x\n\n")
    decoder.feed(b"data: " + b"x" * 600)
    with pytest.raises(LineTooLong, match="more than 1000 bytes"):
        decoder.feed(b"x" * 600 + end)


@pytest.mark.parametrize("cut", [0, 8, 11, 40])
def test_the_line_limit_does_not_depend_on_the_split(cut: int) -> None:
    """A line over the limit raises in one piece and in several; a line at the limit does not."""
    decoder = SseDecoder(max_line_bytes=20)
    decoder.feed(b"data: x\n\n")
    body = b"data: " + b"x" * 15 + b"\n\n"
    with pytest.raises(LineTooLong):
        feed(decoder, body[:cut], body[cut:])
    decoder = SseDecoder(max_line_bytes=21)
    assert feed(decoder, body[:cut], body[cut:]) == [SseEvent(b"", b"x" * 15)]


def test_events_before_a_line_that_is_too_long_are_not_lost() -> None:
    """LineTooLong carries the complete events before the line, so that they count the same in one piece and in two."""
    decoder = SseDecoder(max_line_bytes=20)
    with pytest.raises(LineTooLong) as raised:
        decoder.feed(b"data: a\n\ndata: b\n\ndata: " + b"x" * 30)
    assert [event.data for event in raised.value.events] == [b"a", b"b"]


def test_a_long_line_in_small_pieces_is_not_copied_for_each_piece() -> None:
    """A line of n bytes that arrives byte by byte costs O(n), not O(n²): the buffer grows in place."""
    decoder = SseDecoder()
    decoder.feed(b"data: ")
    buffer = decoder._partial_line
    for _ in range(2_000):
        assert decoder.feed(b"x") == []
    assert decoder._partial_line is buffer
    assert decoder.feed(b"\n\n") == [SseEvent(b"", b"x" * 2_000)]
