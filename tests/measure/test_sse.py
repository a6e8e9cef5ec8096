"""Server-sent events: the same events whatever the split."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prober.measure.sse import Event, LineTooLong, SseDecoder

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


def feed(decoder: SseDecoder, *pieces: bytes) -> list[Event]:
    return [event for piece in pieces for event in decoder.feed(piece)]


def decode(*pieces: bytes) -> list[Event]:
    decoder = SseDecoder()
    return feed(decoder, *pieces) + decoder.finish()


@pytest.mark.parametrize("name", VECTORS)
def test_whole_and_byte_by_byte(name: str) -> None:
    """Each vector gives its events in one piece and byte by byte."""
    body, expected = VECTORS[name]
    assert [event.data for event in decode(body)] == expected
    assert decode(*(body[i : i + 1] for i in range(len(body)))) == decode(body)


@given(st.sampled_from(sorted(VECTORS)), st.lists(st.integers(0, 40), max_size=6))
def test_any_split_gives_the_same_events(name: str, cuts: list[int]) -> None:
    """No split of the bytes changes the events."""
    body, _ = VECTORS[name]
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    assert decode(*(body[a:b] for a, b in itertools.pairwise(edges))) == decode(body)


def test_a_named_event_keeps_its_name_and_the_next_one_has_none() -> None:
    """The name of an event ends with it."""
    assert decode(b"event: ids\ndata: 1\n\ndata: 2\n\n") == [Event(b"ids", b"1"), Event(b"", b"2")]


def test_an_event_cut_by_the_end_is_marked() -> None:
    """What was pending at the end of the body is given, marked incomplete."""
    assert decode(b"data: a\n\ndata: {cut") == [Event(b"", b"a"), Event(b"", b"{cut", False)]


@pytest.mark.parametrize("end", [b"", b"\n\n"])
def test_a_line_past_the_bound_is_refused(end: bytes) -> None:
    """A line that would cost the prober its memory raises, ended or not."""
    decoder = SseDecoder(max_line=1000)
    decoder.feed(b"data: x\n\n")
    decoder.feed(b"data: " + b"x" * 600)
    with pytest.raises(LineTooLong, match="more than 1000 bytes"):
        decoder.feed(b"x" * 600 + end)


def test_comments_are_counted() -> None:
    """Keep-alives are seen, and are no events."""
    decoder = SseDecoder()
    assert decoder.feed(b": ping\n\n:\n\n") == []
    assert decoder.comments == 2


@pytest.mark.parametrize("cut", [0, 8, 11, 40])
def test_the_bound_holds_however_the_line_arrives(cut: int) -> None:
    """A line past the bound is refused in one piece with its event as well as in several, also between events."""
    decoder = SseDecoder(max_line=20)
    decoder.feed(b"data: x\n\n")
    body = b"data: " + b"x" * 15 + b"\n\n"
    with pytest.raises(LineTooLong):
        feed(decoder, body[:cut], body[cut:])
    decoder = SseDecoder(max_line=21)
    assert feed(decoder, body[:cut], body[cut:]) == [Event(b"", b"x" * 15)]


PIECES = (
    b"data: a\n\n",
    b"data:b\r\n\r\n",
    b"data: c\r\r",
    b": ping\n\n",
    b"event: e\ndata: d\ndata: e\n\n",
    b"data\n\n",
    b"\n",
)


@given(st.lists(st.sampled_from(PIECES), max_size=8), st.lists(st.integers(0, 120), max_size=12))
def test_any_mixture_of_events_gives_the_same_in_any_split(parts: list[bytes], cuts: list[int]) -> None:
    """One event a piece, all in one piece, byte by byte and any other split give equal events and comments."""
    body = b"".join(parts)
    edges = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    expected = decode(body)
    assert decode(*(body[a:b] for a, b in itertools.pairwise(edges))) == expected
    assert decode(*parts) == expected
    assert decode(*(body[i : i + 1] for i in range(len(body)))) == expected


def test_events_before_a_line_that_is_too_long_are_not_lost() -> None:
    """What came whole before it is told with the refusal, so that it counts the same in one piece and in two."""
    decoder = SseDecoder(max_line=20)
    with pytest.raises(LineTooLong) as refused:
        decoder.feed(b"data: a\n\ndata: b\n\ndata: " + b"x" * 30)
    assert [event.data for event in refused.value.events] == [b"a", b"b"]


def test_a_long_line_in_small_pieces_is_copied_once() -> None:
    """A line of a megabyte that comes a byte at a time costs its length, not the square of it: what is kept is not made anew."""
    decoder = SseDecoder()
    decoder.feed(b"data: ")
    kept = decoder._rest
    for _ in range(2_000):
        assert decoder.feed(b"x") == []
    assert decoder._rest is kept
    assert decoder.feed(b"\n\n") == [Event(b"", b"x" * 2_000)]
