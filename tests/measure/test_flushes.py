"""Flushes: content that arrived together, and the latencies of an answer that has some."""

from dataclasses import replace
from pathlib import Path

import pytest

from prober.measure.api import APIS, CHAT
from prober.measure.chunk import Usage
from prober.measure.recording import Recording
from prober.measure.timeline import FLUSH_GAP_NS, Timeline, flush_starts
from tests.measure.test_timeline import STREAMS, body_of

MS = 1_000_000
AT_ONCE = "not measurable here: all content arrived at once, so its TTFT is the time of the whole answer"


def answer(
    content_ms: tuple[float, ...],
    n: int | None = None,
    *,
    finish: str = "length",
    tokens: tuple[int, ...] | None = None,
) -> Timeline:
    """Content chunks at these times; n: tokens by usage, tokens: of each chunk."""
    stamps = tuple(round(ms * MS) for ms in content_ms)
    usage = None if n is None else Usage(10, n)
    return Timeline(0, content_ns=stamps, content_tokens=tokens, usage=usage, finish_reason=finish)


def flushes(sizes: tuple[int, ...], gap_ms: float) -> tuple[float, ...]:
    """Times of chunks in flushes of these sizes."""
    return tuple(gap_ms * (place + 1) for place, size in enumerate(sizes) for _ in range(size))


@pytest.mark.parametrize(
    ("stamps_ns", "starts"),
    [
        ((), []),
        ((5,), [0]),
        ((5, 5, 5), [0]),
        ((0, FLUSH_GAP_NS, 2 * FLUSH_GAP_NS), [0, 1, 2]),  # as fast as one chunk at a time is believed
        ((0, 10 * MS, 10 * MS, 20 * MS), [0, 1, 3]),
        ((0, 10 * MS, 10 * MS + 90_000, 20 * MS), [0, 1, 3]),  # one release, read in two pieces
        ((*range(0, 2_000_000, 100_000), 3 * MS), [0]),  # released event by event, with one pause
        ((0, 0, 0, 0, *(MS + n for n in range(60))), [0]),  # one release, whose second part took a round trip
        ((*(0 for _ in range(8)), *(80 * MS for _ in range(8))), [0, 8]),
    ],
)
def test_content_that_arrives_faster_than_an_engine_makes_tokens_is_one_flush(
    stamps_ns: tuple[int, ...], starts: list[int]
) -> None:
    """By neighbouring gaps, and for all of the answer by the mean."""
    assert flush_starts(stamps_ns) == starts


def test_a_flush_has_one_itl() -> None:
    """No gaps of 0 ms: the gap before the flush counts once, or is divided by the tokens where every chunk has its usage."""
    times = flushes((1, 1, 3, 1), 10)
    assert answer(times, 6).itls_s == pytest.approx([0.01] * 3)
    assert answer(times, 6, tokens=(1,) * 6).itls_s == pytest.approx([0.01, 0.01 / 3, 0.01])
    assert answer(times, 6).chunk_gaps_s == pytest.approx([0.01, 0.01, 0, 0, 0.01])


@pytest.mark.parametrize(
    ("sizes", "gaps_ms", "itls_ms"),
    [
        ((1, 1, 3, 1), [10, 10 / 3, 10 / 3, 10 / 3, 10], [10, 10 / 3, 10]),
        ((3, 1, 2), [10, 5, 5], [10, 5]),  # of the first three nobody knows
        ((4,), [], []),
    ],
)
def test_chunks_that_were_read_late_share_the_time_before_them(
    sizes: tuple[int, ...], gaps_ms: list[float], itls_ms: list[float]
) -> None:
    """They may have come apart. A prober that was in time sees a flush, whose gaps are 0."""
    timeline = answer(flushes(sizes, 10), sum(sizes))
    late = replace(timeline, max_read_delay_s=0.02)
    assert late.chunk_gaps_s == pytest.approx([gap_ms / 1e3 for gap_ms in gaps_ms])
    assert late.itls_s == pytest.approx([itl_ms / 1e3 for itl_ms in itls_ms])
    assert len(timeline.chunk_gaps_s) == sum(sizes) - 1
    assert timeline.itls_s == pytest.approx([0.01] * (len(sizes) - 1))
    assert late.tpot_s == timeline.tpot_s


def test_tpot_leaves_out_the_tokens_of_the_first_flush() -> None:
    """Eight at a time, 10 ms a token: 10 ms, not 23/16 of it too little."""
    times = flushes((8, 8, 8), 80)
    assert answer(times, 24).tpot_s == pytest.approx(0.010)
    assert answer(times, 25, finish="end_turn").tpot_s == pytest.approx(0.160 / 17)  # the stop token has no content
    assert answer(times, 48, tokens=(2,) * 24).tpot_s == pytest.approx(0.160 / 32)


@pytest.mark.parametrize(("n", "finish"), [(25, "length"), (26, "end_turn"), (23, "length"), (48, "length")])
def test_chunks_of_the_first_flush_are_no_tokens_unless_all_chunks_are(n: int, finish: str) -> None:
    """Some chunk has more than one token, and nobody knows whether it is in the first flush: no TPOT rather than a guess."""
    timeline = answer(flushes((8, 8, 8), 80), n, finish=finish)
    assert timeline.tpot_s is None
    assert timeline.why_no_tpot == "not measurable here: the tokens after the first flush are not known"


def test_an_engine_that_puts_several_tokens_into_a_chunk_has_a_tpot() -> None:
    """Its first chunk came alone: it is the one token of the prefill."""
    timeline = answer((100, 130, 160, 190), 10)
    assert timeline.tpot_s == pytest.approx(0.010)
    assert timeline.why_no_tpot == ""


@pytest.mark.parametrize(
    ("timeline", "why"),
    [
        (answer((100, 100, 100), 3), AT_ONCE),
        (answer((100, 100, 100)), AT_ONCE),
        (answer((100,), 32), AT_ONCE),
        (answer((100,), 1), "the answer has fewer than two tokens"),
        (answer((100, 110)), "the server sent no usage"),
        (answer((100, 110), 2), ""),
        (answer(()), ""),
    ],
)
def test_a_missing_tpot_has_its_reason(timeline: Timeline, why: str) -> None:
    """A TPOT that was not measured is None with a reason, never 0."""
    assert timeline.why_no_tpot == why
    assert (timeline.tpot_s is None) == bool(why or not timeline.content_ns)
    assert timeline.itls_s == [] or why != AT_ONCE


@pytest.mark.parametrize("name", sorted(path.name for path in STREAMS.glob("*.http")))
def test_a_captured_answer_that_arrives_in_one_read_has_neither_tpot_nor_itl(name: str) -> None:
    """Real streams of vLLM and of a gateway, delivered at once: TTFT is stamped, nothing is 0."""
    recording = Recording(api=APIS.get(Path(name).stem.rpartition("_")[2], CHAT))
    recording.feed(900 * MS, body_of(STREAMS / name))
    recording.finish()
    timeline = recording.complete(Timeline(0))
    assert recording.answer.chunks > 1
    assert (timeline.ttft_s, timeline.tpot_s, timeline.itls_s) == (0.9, None, [])
    assert timeline.why_no_tpot == AT_ONCE
