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


def test_tpot_excludes_the_tokens_of_the_first_chunk() -> None:
    """TPOT divides by the tokens after the first chunk."""
    _, timeline = record((10, chunk({"content": "abcd"}, tokens=4)), (50, chunk({"content": "e"}, "stop", tokens=8)))
    assert timeline.tpot_s == pytest.approx(0.040 / 4)


def test_the_number_of_chunks_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless stream is stopped before it fills the memory."""
    monkeypatch.setattr(module, "MAX_CHUNKS", 3)
    recording, _ = record(*((i, chunk({"content": "a"})) for i in range(6)))
    assert recording.malformed == "more than 3 content chunks in one stream"
    assert recording.content_chunks == 3


def test_an_answer_without_stream_has_no_ttft() -> None:
    """With `stream: false` only E2E is measured."""
    recording = Recording(streamed=False)
    answer = {
        "choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1},
    }
    recording.feed(5 * MS, json.dumps(answer).encode())
    recording.finish()
    timeline = recording.complete(Timeline(0, end_ns=5 * MS))
    assert timeline.ttft_s is None
    assert timeline.e2e_s == pytest.approx(0.005)
    assert (recording.content_chunks, recording.finish_reason) == (1, "stop")


def test_send_lag_starts_at_the_later_of_intended_and_connected() -> None:
    """Waiting for a slow connection is not a delay of the prober."""
    assert Timeline(10 * MS, connection=Connection(0, 5 * MS), sent_ns=12 * MS).send_lag_s == pytest.approx(0.002)
    assert Timeline(10 * MS, connection=Connection(0, 30 * MS), sent_ns=31 * MS).send_lag_s == pytest.approx(0.001)


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
        wholes.add((recording.done, recording.finish_reason, recording.usage, recording.text, recording.content_chunks))
    assert len(wholes) == 1
    timeline = recording.complete(Timeline(0))
    assert recording.done
    assert recording.finish_reason in ("length", "stop", "max_output_tokens", "max_tokens")
    assert recording.answered_model
    assert timeline.usage is not None
    assert timeline.usage.completion_tokens == completion
    assert content is None or recording.content_chunks == content


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
    assert recording.content_chunks == 2
    assert timeline.content_tokens is None
