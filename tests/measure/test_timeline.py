"""Timelines: from timestamped bytes to TTFT, TPOT, ITL and E2E."""

import json
from pathlib import Path
from typing import Any

import pytest

from prober.measure import recording as module
from prober.measure.api import APIS, CHAT
from prober.measure.recording import Recording
from prober.measure.timeline import Connection, Timeline

MS = 1_000_000
STREAMS = Path(__file__).parent.parent / "streams"


def chunk(delta: dict[str, Any] | None, finish: str | None = None, tokens: int | None = None) -> bytes:
    document: dict[str, Any] = {
        "choices": [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    }
    if tokens is not None:
        document["usage"] = {"prompt_tokens": 7, "completion_tokens": tokens}
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def record(*pieces: tuple[int, bytes], intended_ms: int = 0) -> tuple[Recording, Timeline]:
    recording = Recording()
    for at_ms, data in pieces:
        recording.feed(at_ms * MS, data)
    recording.finish()
    return recording, recording.complete(Timeline(intended_ms * MS, end_ns=pieces[-1][0] * MS))


def test_itl_is_divided_by_the_tokens_of_a_chunk_if_known() -> None:
    """With usage in every chunk, ITL is gap ÷ tokens; the chunk gap is not divided."""
    _, timeline = record(
        (10, chunk({"content": "a"}, tokens=1)),
        (40, chunk({"content": "bcd"}, tokens=4)),
        (50, chunk({"content": "e"}, "length", tokens=5)),
        (51, chunk(None, tokens=5)),
    )
    assert list(timeline.content_tokens or ()) == [1, 3, 1]
    assert timeline.itls_s == pytest.approx([0.010, 0.010])
    assert timeline.chunk_gaps_s == pytest.approx([0.030, 0.010])
    assert timeline.tpot_s == pytest.approx(0.040 / 4)


def test_without_usage_there_is_no_tpot() -> None:
    """Without usage there is no token count and no TPOT; the gaps are the ITLs."""
    _, timeline = record((10, chunk({"content": "a"})), (30, chunk({"content": "b"}, "stop")))
    assert timeline.usage is None
    assert timeline.tpot_s is None
    assert timeline.content_tokens is None
    assert timeline.itls_s == pytest.approx([0.020])


def test_the_number_of_chunks_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless stream is stopped before it fills the memory."""
    monkeypatch.setattr(module, "MAX_CHUNKS", 3)
    recording, _ = record(*((i, chunk({"content": "a"})) for i in range(6)))
    assert recording.malformed == "more than 3 content chunks in one stream"
    assert recording.answer.chunks == 3


LEAD = 10 * MS
SETUPS: dict[str, tuple[Connection | None, int, float, float]] = {  # connection, sent in ms: send lag, TTFT in ms
    "sent when due": (Connection(0, 5 * MS, lead_ns=LEAD), 10, 0, 90),
    "sent late": (Connection(0, 5 * MS, lead_ns=LEAD), 12, 2, 88),
    "without a connection": (None, 12, 2, 88),
    "ready after the due time": (Connection(0, 30 * MS, lead_ns=LEAD), 30, 0, 90),
    "ready after the due time, and sent late": (Connection(0, 30 * MS, lead_ns=LEAD), 31, 1, 89),
    "begun late, and as quick as the lead": (Connection(20 * MS, 30 * MS, lead_ns=LEAD), 30, 20, 70),
    "begun late, and slow": (Connection(20 * MS, 50 * MS, lead_ns=LEAD), 50, 20, 70),
    "begun early": (Connection(-20 * MS, 0, lead_ns=LEAD), 10, 0, 90),
    "without a lead": (Connection(0, 5 * MS), 15, 0, 90),
    "begun again after the due time": (Connection(12 * MS, 15 * MS, lead_ns=-2 * MS), 15, 0, 90),
}


@pytest.mark.parametrize("name", SETUPS)
def test_only_what_the_target_delayed_after_the_due_time_is_in_a_latency(name: str) -> None:
    """A connection that takes longer than its lead delays the request; how late the prober began, woke or sent does not count."""
    connection, sent_ms, lag_ms, ttft_ms = SETUPS[name]
    timeline = Timeline(10 * MS, connection, sent_ns=sent_ms * MS, first_ns=100 * MS, end_ns=150 * MS)
    assert timeline.send_lag_s == pytest.approx(lag_ms / 1e3)
    assert timeline.ttft_s == pytest.approx(ttft_ms / 1e3)
    assert timeline.e2e_s == pytest.approx(ttft_ms / 1e3 + 0.05)
    assert timeline.bounds_s("ttft") == (timeline.ttft_s, timeline.ttft_s)


def test_what_the_other_end_takes_slowly_is_in_a_latency() -> None:
    """A request that had to wait in the kernel has left with its last byte, and was the prober's only until it was handed over."""
    timeline = Timeline(10 * MS, sent_ns=60 * MS, handed_ns=12 * MS, acknowledged_ns=65 * MS, first_ns=100 * MS)
    assert timeline.send_lag_s == pytest.approx(0.002)
    assert timeline.ttft_s == pytest.approx(0.088)
    assert timeline.network_s == pytest.approx(0.053)


def test_without_departure_or_acknowledgement_the_network_is_unknown() -> None:
    """Never 0. An acknowledgement that the kernel has stamped just before the departure is at once."""
    assert Timeline(0, acknowledged_ns=MS).network_s is None
    assert Timeline(0, sent_ns=MS).network_s is None
    assert Timeline(0, sent_ns=MS, acknowledged_ns=MS - 1).network_s == 0


@pytest.mark.parametrize(("early_ms", "ttft_ms"), [(100, 100), (90, 95), (89, 94.5), (87, None), (20, None), (0, None)])
def test_a_first_content_between_two_times_is_a_figure_if_they_are_close(early_ms: int, ttft_ms: float | None) -> None:
    """As close as the bounds of a bucket: the middle. Else it has none, and the reason; the other latencies stay."""
    timeline = Timeline(
        0, sent_ns=10 * MS, first_ns=110 * MS, end_ns=200 * MS, earliest_ns={110 * MS: early_ms * MS + 10 * MS}
    )
    assert timeline.bounds_s("ttft") == (early_ms / 1e3, 0.1)
    assert timeline.ttft_s == (None if ttft_ms is None else pytest.approx(ttft_ms / 1e3))
    assert timeline.e2e_s == 0.19
    why = f"the first content came {early_ms} ms to 100 ms after the request: it was read together with later chunks"
    assert timeline.why_no_ttft.startswith(why) == (ttft_ms is None)
    assert bool(timeline.why_no_ttft) == (ttft_ms is None)


def test_nothing_arrives_before_its_request_has_left() -> None:
    """The lower bound is the last reading before, which may lie before the departure."""
    timeline = Timeline(0, sent_ns=10 * MS, first_ns=110 * MS, earliest_ns={110 * MS: 9 * MS})
    assert timeline.bounds_s("ttft") == (0, 0.1)


def test_a_departure_without_a_stamp_makes_every_latency_unsure() -> None:
    """By the time between the two readings of the clock."""
    timeline = Timeline(0, sent_ns=10 * MS, sent_earliest_ns=8 * MS, first_ns=110 * MS, end_ns=210 * MS)
    assert timeline.bounds_s("ttft") == (0.1, 0.102)
    assert timeline.ttft_s == pytest.approx(0.101)
    assert timeline.bounds_s("e2e") == (0.2, 0.202)
    assert timeline.e2e_s == pytest.approx(0.201)


def body_of(path: Path) -> bytes:
    return path.read_bytes().partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize(
    ("name", "content", "completion"),
    [
        ("vllm_0.32_chat_continuous_usage.http", 5, 5),
        ("vllm_0.32_chat_multitoken_chunks.http", 4, 8),
        ("vllm_0.32_completions.http", 3, 3),
        ("vllm_0.32_responses.http", 4, 4),
        ("vllm_0.32_messages.http", None, 4),
        ("litellm_1.106.2_chat.http", None, 15),
    ],
)
def test_captured_streams_are_parsed(name: str, content: int | None, completion: int) -> None:
    """Streams captured from real servers end properly, with the server's token count, wherever they are split in two."""
    body = body_of(STREAMS / name)
    api = APIS.get(Path(name).stem.rpartition("_")[2], CHAT)
    wholes = set()
    for split in range(len(body)):
        recording = Recording(api=api)
        for at_ns, piece in ((1, body[:split]), (2, body[split:])):
            recording.feed(at_ns, piece)
        recording.finish()
        wholes.add(
            (
                recording.done,
                recording.answer.finish_reason,
                recording.answer.usage,
                recording.answer.text,
                recording.answer.chunks,
            )
        )
    assert len(wholes) == 1
    timeline = recording.complete(Timeline(0))
    assert recording.done
    assert recording.answer.finish_reason in ("length", "stop", "max_output_tokens", "max_tokens")
    assert recording.answer.model
    assert timeline.usage is not None
    assert timeline.usage.completion_tokens == completion
    assert content is None or recording.answer.chunks == content


@pytest.mark.parametrize("at", [0, 40, 200])
def test_events_before_a_line_that_is_too_long_count(at: int) -> None:
    """Content and an error before the line count, wherever the stream is split."""
    first, error = chunk({"content": "a"}), b'data: {"error": {"message": "busy"}}\n\n'
    for before, malformed in ((first, True), (error, False)):
        body = before + b"data: " + b"x" * (1 << 20)
        recording, timeline = record((1, body[:at]), (1, body[at:]))
        assert (recording.malformed is not None) == malformed
        assert recording.error == (None if malformed else "busy")
        assert (timeline.first_ns is not None) == malformed


def test_an_impossible_token_count_is_ignored() -> None:
    """2**63 tokens in every chunk: no exception, and no tokens per chunk."""
    recording, timeline = record(
        (1, chunk({"content": "a"}, tokens=2**63)), (2, chunk({"content": "b"}, "stop", tokens=2**64 - 1))
    )
    assert recording.answer.chunks == 2
    assert timeline.content_tokens is None
