"""SSE decoder: its limit, and the end of a body; tests/wire has the events themselves."""

import pytest

from prober.measure.sse import LineTooLong, SseDecoder, SseEvent


def feed(decoder: SseDecoder, *pieces: bytes) -> list[SseEvent]:
    return [event for piece in pieces for event in decoder.feed(piece)]


def decode(*pieces: bytes) -> list[SseEvent]:
    decoder = SseDecoder()
    return feed(decoder, *pieces) + decoder.finish()


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


def test_a_long_line_in_small_pieces_is_not_copied_for_each_piece() -> None:
    """A line of n bytes that arrives byte by byte costs O(n), not O(n²): the buffer grows in place."""
    decoder = SseDecoder()
    decoder.feed(b"data: ")
    buffer = decoder._partial_line
    for _ in range(2_000):
        assert decoder.feed(b"x") == []
    assert decoder._partial_line is buffer
    assert decoder.feed(b"\n\n") == [SseEvent(b"", b"x" * 2_000)]
