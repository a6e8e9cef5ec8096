"""What histories store of a result, and what reading a server's error leaves behind."""

import gc
import sys
from array import array
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

import pytest

from prober.measure.chunk import Usage
from prober.measure.outcome import Outcome
from prober.measure.payload import Malformed, error_message, json_object
from prober.measure.recording import Recording
from prober.measure.result import MAX_STORED_FAILURE_BYTES, ProbeResult
from prober.measure.server_timing import TimeParts
from prober.measure.timeline import Connection, Timeline

BEGIN_NS = 10**15
NAMES = ("target", "workload", "model", "engine", "check", "adapter")  # shared by all results of a target


def result(outcome: Outcome, detail: str = "", text: str = "", chunks: int = 0, **timeline: Any) -> ProbeResult:
    """A result with everything that a server can cause."""
    connection = Connection(BEGIN_NS, BEGIN_NS + 1, 0.1, 0.2, 0.3, 0.4)
    stamps = array("q", range(BEGIN_NS, BEGIN_NS + 10_000_000 * chunks, 10_000_000))
    answer = Timeline(
        BEGIN_NS + 2, connection, BEGIN_NS + 3, BEGIN_NS + 4, BEGIN_NS + 5, BEGIN_NS + 6, BEGIN_NS + 7, stamps,
        parts=TimeParts(0.1, 0.2, 0.3, 0.4, 0.5, 0.6),
        usage=Usage(1000, 3000, 500, 600), calls=300, call_ns=BEGIN_NS + 8, arguments_ns=BEGIN_NS + 9, charged_tokens=(1000, 3000),
    )  # fmt: skip
    return ProbeResult(
        "one", "probe", f"prober-{BEGIN_NS:032x}", BEGIN_NS / 7, outcome, detail, replace(answer, **timeline), "m", "vllm", 1000, 3000,
        text=text, rate_limit={"requests": 1e9, "tokens": 1e10}, retries={"retry": 1000, "fallback": 1001}, retry_after_s=2.5,
        cert_expiry_unix_s=BEGIN_NS / 3, server_request_id=f"req-{BEGIN_NS:096x}",
    )  # fmt: skip


def memory(value: Any, seen: set[int]) -> int:
    """Bytes of a value and all that it refers to, each object once; empty values are shared by all."""
    if not value or isinstance(value, Enum) or id(value) in seen:
        return 0
    seen.add(id(value))
    parts: Any = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else ()
    if is_dataclass(value):
        parts = [getattr(value, part.name) for part in fields(value) if part.name not in NAMES]
    return sys.getsizeof(value) + sum(memory(part, seen) for part in parts)


@pytest.mark.parametrize("character", ["e", "é", "日", "😀"])
@pytest.mark.parametrize(
    ("detail", "text", "chunks", "timeline"),
    [
        (0, 0, 0, {}),
        (300, 0, 0, {}),
        (50_000, 2_000, 0, {}),
        (80, 2_000, 100_000, {}),
        (80, 100, 48, {"content_tokens": array("q", [1000] * 48)}),
        (300, 2_000, 3_000, {"finish_reason": 300, "answered_model": 300}),
    ],
)
def test_a_stored_failure_takes_two_kib_whatever_came(
    character: str, detail: int, text: int, chunks: int, timeline: dict[str, Any]
) -> None:
    """Detail, answer, names and times of chunks together; a cut text says so, and TTFT and E2E stay."""
    names = {name: character * value if isinstance(value, int) else value for name, value in timeline.items()}
    whole = result(Outcome.TIMEOUT_STALL, character * detail, character * text, chunks, **names)
    stored = whole.stored
    assert memory(stored, set()) <= MAX_STORED_FAILURE_BYTES
    words, _, note = stored.detail.partition("; only the first of ")
    assert words == whole.detail or words.endswith("…") or not words
    assert whole.detail.startswith(words.removesuffix("…"))
    assert bool(note) == (len(stored.timeline.content_ns) < chunks)
    assert (stored.request_id, stored.timeline.ttft_s) == (whole.request_id, whole.timeline.ttft_s)
    assert stored.server_request_id == whole.server_request_id
    assert stored.timeline.parts in (whole.timeline.parts, None)
    assert stored.timeline.e2e_s == whole.timeline.e2e_s


def test_a_usual_failure_is_stored_whole() -> None:
    """An error of 300 characters; a short stream that was cut, with its times."""
    connection = Connection(0, BEGIN_NS, 0.1, 0.2, 0.3, 0.4)
    refused = ProbeResult("one", "w", "id", 1.0, Outcome.HTTP_5XX, "x" * 309 + "…", Timeline(0, connection, BEGIN_NS))
    assert refused.stored == refused
    timeline = Timeline(0, connection, content_ns=range(48), parts=TimeParts(0.1, 0.2, 0.3))
    cut = ProbeResult("one", "w", "id", 1.0, Outcome.RESET, "d" * 80, timeline, text="t" * 150)
    assert cut.stored == cut


def test_histories_share_a_stored_failure() -> None:
    """So that its memory counts once."""
    failure = result(Outcome.HTTP_5XX, "x" * 5_000)
    assert failure.stored is failure.stored


def test_a_cut_timeline_has_no_tpot() -> None:
    """The usage counts the tokens of all chunks."""
    stored = result(Outcome.SHORT, chunks=3_000).stored
    assert 0 < len(stored.timeline.content_ns) < 3_000
    assert stored.timeline.tpot_s is None
    assert stored.timeline.itls_s == pytest.approx([0.01] * (len(stored.timeline.content_ns) - 1))


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.WRONG_ANSWER])
def test_an_answer_is_stored_whole(outcome: Outcome) -> None:
    """Also a wrong one: its latencies count."""
    answered = result(outcome, "x" * 5_000, "t" * 2_000, 3_000)
    assert answered.stored is answered


@pytest.fixture
def uncollected() -> Iterator[None]:
    """The collector neither runs nor looks at what was there before."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize(
    "body",
    [
        b"x" * 64_000,
        b"<html>" + b"<p>trace" * 8_000,
        "é".encode() * 32_000,
        b'{"error": ' + b"x" * 64_000,
        b"[" * 64_000,
        b'{"a": NaN, "b": "' + b"x" * 64_000 + b'"}',
        b'{"error": {"message": "' + b"x" * 64_000 + b'"}}',
        b"\x1f\x8b" + b"\x00" * 64_000,
    ],
)  # fmt: skip
def test_a_large_error_is_freed_at_once(body: bytes) -> None:
    """The collector counts objects and not bytes: a cycle that holds a body of 64 kB would stay for thousands of failures."""
    error_message(body, 500)
    with suppress(Malformed):
        json_object(body)
    for streamed in (True, False):
        recording = Recording(streamed)
        recording.feed(1, body)
        recording.finish("text/html")
        del recording
    assert gc.collect() == 0
