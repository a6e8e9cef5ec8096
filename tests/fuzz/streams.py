"""Hostile event streams for the parsers of answers, as a probe uses them: `measure/`'s sse, chat, timeline, outcome.

A stream is made from events of the wire suite and of tests/streams, which engines have sent, by structured mutation: values of
their JSON replaced by hostile ones, keys doubled, events dropped, doubled, named, split over lines, line ends mixed, bytes changed,
inserted, cut out and repeated; then it is cut into pieces. Of every stream it is asked that

- nothing raises: what cannot be read is an outcome, never an exception;
- the same bytes cut otherwise give the same answer: text, usage, finish, error, number of chunks, verdict and
  its sentence;
- what is kept of it is bounded, whatever it was: text, answer, error, reason;
- it takes at most SLOW_NS, and SLOW_NS_A_BYTE for each of its bytes, in processor time, in one of TRIES; nothing takes HANGS_S.

Streams are drawn in blocks, each from a seed of its own, so that one that fails can be drawn again: its bytes are written to a
folder. `python -m bench.fuzz` runs ten million.
"""

import faulthandler
import itertools
import os
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from prober.measure.answer import MAX_ANSWER_CHARS, MAX_TEXT_CHARS
from prober.measure.outcome import ExpectedAnswer, Outcome, checked, classify
from prober.measure.quality import Expectation, answer_problem
from prober.measure.recording import Recording
from prober.measure.timeline import Timeline
from tests.wire.table import read_cases

STREAMS = Path(__file__).parent.parent / "streams"
BLOCK = 1_000  # streams drawn from one seed
SLOW_NS, SLOW_NS_A_BYTE, HANGS_S = 20_000_000, 20_000, 120
TRIES = 3  # a shared machine charges a process for its neighbours now and then
KEPT = 2_000  # characters of an error, a finish reason or a verdict's sentence
RARE = 1_500  # one stream of so many is large
MB = 1 << 20

CONTENT = b'{"choices":[{"index":0,"delta":{"content":" word"}}],"usage":{"prompt_tokens":7,"completion_tokens":1}}'
MAX_SEED_BYTES = 2_000
VALUES = (
    *(b"null", b"true", b"false", b"0", b"-1", b"-0.0", b"1e999", b"1e-999", b"NaN", b"Infinity", b"-Infinity", b"0x10", b"01"),
    *(b"9223372036854775807", b"9223372036854775808", b"18446744073709551615", b"18446744073709551616", b"9" * 400, b"1.5"),
    *(b'""', b'"\\u0000"', b'"\\ud800"', b'"\\udc00\\ud800"', b'"\x00"', b'"\xff\xfe"', b'"\xed\xa0\x80"', b'"stop"', b'"error"'),
    *(b'"[DONE]"', b'"data: x"', b"[]", b"{}", b"[[]]", b"[null]", b'[{"a":1}]', b'{"a":{"b":[1,2]}}', b'{"message":null}', b'{"":""}'),
    *(b'"' + b"x" * 3_000 + b'"', b"[" * 20 + b"]" * 20, b'{"a":' * 20 + b"1" + b"}" * 20, b"[" * 300 + b"]" * 300, b"", b'"'),
    *(b"[" + b"[]," * 1_000 + b"[]]", b"1e308", b"1000000000", b'"\\\\' + b"a" * 20 + b'\\\\"', b"[" + b"1," * 2_000 + b"1]"),
)  # fmt: skip
BYTES = (b"\x00", b"\xff", b"\xef\xbb\xbf", b"\r", b"\n", b"\r\n", b"\n\n", b"\r\r", b"data:", b"data", b": ", b"event: error\n", b"{",
         b"}", b"[", b"]", b'"', b"\\", b"\\u", b",", b"\xe2\x80\xa8", b"\x0b", b"[DONE]", b" ", b"id: 1\n", b"retry: x\n")  # fmt: skip
ENDS = (b"\n", b"\r\n", b"\r", b"\n\r", b"")
NAMES = (b"event: message", b"event: error", b"event: ping", b"event:", b": keep-alive", b":", b"id: 7", b"retry: 3", b"data",
         b"data:", b"\x00")  # fmt: skip
DEPTHS = (100, 254, 255, 300, 900, 1_000, 1_023, 1_024, 1_025, 5_000, 100_000)


class Promise(NamedTuple):
    """What an answer has to be."""

    expected: ExpectedAnswer = ExpectedAnswer()
    expectation: Expectation | None = None


PROMISES = (
    Promise(),
    Promise(ExpectedAnswer(end_mark="")),
    Promise(ExpectedAnswer(tokens=16, forced=True)),
    Promise(expectation=Expectation("text", "word")),
    Promise(expectation=Expectation("regex", r"\bword\b")),
    Promise(expectation=Expectation("json_schema", {"type": "object"})),
)
VALUE = re.compile(rb'(?<=[:\[,])(?:"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null|\[\]|\{\})(?=[,}\]])')
KEY = re.compile(rb'"(?:[^"\\]|\\.)*":')


class Broken(Exception):
    """A stream of which something does not hold."""


class Template(NamedTuple):
    """An event's payload, cut at its values: they are the odd parts."""

    parts: tuple[bytes, ...]
    payload: bytes


def template(payload: bytes) -> Template:
    """Where its values are."""
    parts, at = list[bytes](), 0
    for found in VALUE.finditer(payload):
        parts += [payload[at : found.start()], found[0]]
        at = found.end()
    return Template((*parts, payload[at:]), payload)


def recorded() -> list[list[Template]]:
    """The first events of the streams that engines have sent."""
    found = []
    for path in sorted(STREAMS.glob("*.http")):
        lines = path.read_bytes().replace(b"\r\n", b"\n").split(b"\n")
        payloads = [line[6:] for line in lines if line.startswith(b"data: {")]
        found.append([template(payload) for payload in (*payloads[:3], *payloads[-2:])])
    if not found:
        raise RuntimeError(f"no streams in {STREAMS}")
    return found


def written() -> list[bytes]:
    """The events of the wire suite's servers, as far as they are JSON and not long."""
    steps = (step for case in read_cases() for step in case.script if isinstance(step, bytes))
    lines = {line[6:] for step in steps for line in step.split(b"\n") if line.startswith(b"data: {")}
    return [CONTENT, *sorted(line for line in lines if KEY.search(line) and len(line) <= MAX_SEED_BYTES)]


class Maker:
    """Makes streams. Everything is drawn from `rng`."""

    def __init__(self) -> None:
        self.rng = Random()
        self._pool = [template(payload) for payload in written()]
        self._recorded = recorded()

    def stream(self) -> bytes:
        """The next one."""
        rng = self.rng
        if rng.random() < 1 / RARE:
            return self._large()
        pool = self._pool
        if rng.random() < 0.15:
            events = list(rng.choice(self._recorded))
        else:
            events = [pool[int(rng.random() * len(pool))] for _ in range(1 + int(rng.random() * 4))]
        pieces = list[bytes]()
        end = ENDS[int(rng.random() ** 3 * len(ENDS))]
        for event in events:
            self._event(pieces, event, end)
        if rng.random() < 0.7:
            pieces += (b"data: [DONE]", end, end)
        body = b"".join(pieces)
        while rng.random() < 0.35:
            body = self._bytes(body)
        return body

    def _event(self, pieces: list[bytes], event: Template, end: bytes) -> None:
        rng = self.rng
        payload = self._payload(event) if rng.random() < 0.35 else event.payload
        draw = rng.random()
        if draw < 0.04:
            pieces += (NAMES[int(rng.random() * len(NAMES))], end)
        if draw > 0.97 and (comma := payload.find(b",", int(rng.random() * len(payload)))) > 0:
            payload = payload[: comma + 1] + end + b"data: " + payload[comma + 1 :]
        field = (
            b"data: "
            if draw > 0.03
            else rng.choice((b"data:", b"data:  ", b"DATA: ", b" data: ", b"\xef\xbb\xbfdata: ", b""))
        )
        pieces += (field, payload, end, end)
        if draw < 0.02:
            pieces += pieces[-4:]

    def _payload(self, event: Template) -> bytes:
        """With values, or a key, that no engine sends."""
        rng, parts = self.rng, list(event.parts)
        draw = rng.random()
        if draw < 0.1:
            keys = KEY.findall(event.payload)
            old, new = rng.choice(keys), rng.choice(keys)
            return event.payload.replace(old, new + rng.choice(VALUES) + b"," + old, 1)  # a key is there twice
        for _ in range(1 if draw < 0.7 else 3):
            if len(parts) > 1:
                parts[1 + 2 * int(rng.random() * (len(parts) // 2))] = VALUES[int(rng.random() * len(VALUES))]
        return b"".join(parts)

    def _bytes(self, body: bytes) -> bytes:
        rng = self.rng
        at = int(rng.random() * (len(body) + 1))
        upto = min(len(body), at + int(rng.random() ** 4 * 200))
        draw = rng.random()
        if draw < 0.35:
            return body[:at] + BYTES[int(rng.random() * len(BYTES))] + body[at:]
        if draw < 0.5:
            return body[:at] + rng.randbytes(1 + int(rng.random() * 3)) + body[at + 1 :]
        if draw < 0.65:
            return body[:at]
        if draw < 0.8:
            return body[:at] + body[upto:]
        if draw < 0.9:
            return body[:at] + body[at:upto] * (2 + int(rng.random() ** 3 * 20)) + body[upto:]
        return body.replace(b"\n", ENDS[int(rng.random() * len(ENDS))], 1 + int(rng.random() * 8))

    def _large(self) -> bytes:
        """Long lines, deep documents, many events."""
        rng = self.rng
        event = rng.choice(self._pool)
        depth = rng.choice(DEPTHS)
        nest = rng.choice(((b"[", b"]"), (b'{"a":', b"}")))
        value = nest[0] * depth + b"1" + nest[1] * depth
        size = rng.choice((MB - 100, MB - 7, MB - 6, MB - 5, MB, MB + 1, 3 * MB))
        kind = rng.randrange(4)
        if kind == 0 and len(event.parts) > 1:
            parts = list(event.parts)
            parts[rng.randrange(1, len(parts), 2)] = value
            large = b"data: " + b"".join(parts) + b"\n\n"
        elif kind == 1:
            large = b"data: " + b"x" * size + b"\n\n"
        elif kind == 2:
            large = b"data: " + event.payload.replace(b'"a"', b'"' + b"y" * size + b'"') + b"\ndata: \n\n"
        else:
            large = (b"data: " + event.payload + b"\n\n") * rng.randrange(200, 2_000)
        return (b"data: " + CONTENT + b"\n\n") * rng.randrange(2) + large + b"data: [DONE]\n\n"


def cuts(rng: Random, length: int) -> list[int]:
    """Where a stream is cut into pieces."""
    draw = rng.random()
    if draw < 0.02 and length <= 600:
        return list(range(1, length))
    count = 1 + int(rng.random() ** 3 * 8)
    return sorted(int(rng.random() * (length + 1)) for _ in range(count))


def answer(body: bytes, edges: Sequence[int], promise: Promise) -> tuple[Any, ...]:
    """What the probe makes of it, cut at `edges`. Raises Broken if it keeps too much."""
    recording = Recording(keeps_prose=promise.expectation is not None)
    for a, b in itertools.pairwise((0, *edges, len(body))):
        recording.feed(1, body[a:b])
    recording.finish()
    seen = recording.complete(Timeline(0, sent_ns=0, headers_ns=1, end_ns=1))
    end = recording.observed_end(transport_verdict=None, status=200)
    verdict = classify(end, promise.expected)
    if verdict.outcome is Outcome.OK and promise.expectation is not None:
        problem = recording.answer.length_problem or answer_problem(
            promise.expectation,
            recording.answer.prose,
            [(call.name, call.arguments) for call in recording.answer.calls],
        )
        verdict = checked(verdict, end, problem)
    quantities = (seen.ttft_s, seen.ttft_answer_s, seen.e2e_s, seen.tpot_s, sum(seen.itls_s), sum(seen.chunk_gaps_s))
    sizes = {
        "text": (len(recording.answer.text), MAX_TEXT_CHARS),
        "answer": (len(recording.answer.prose), MAX_ANSWER_CHARS + MB),
        "error": (len(recording.error or ""), KEPT),
        "finish reason": (len(recording.answer.finish_reason or ""), KEPT),
        "sentence": (len(verdict.detail), KEPT),
    }
    for what, (size, most) in sizes.items():
        if size > most:
            raise Broken(f"keeps {size} characters of {what}")
    return (verdict, recording.answer.text, recording.answer.prose, recording.done, recording.answer.chunks, quantities, seen.usage,
            seen.content_tokens, seen.finish_reason, recording.error, recording.malformed)  # fmt: skip


def hold(body: bytes, edges: Sequence[int], promise: Promise) -> str:
    """The outcome of a stream. Raises Broken, or whatever it is that should not be raised."""
    for _ in range(TRIES):
        begun = time.thread_time_ns()
        cut = answer(body, edges, promise)
        took = time.thread_time_ns() - begun
        if took <= SLOW_NS + SLOW_NS_A_BYTE * len(body):
            break
    else:
        raise Broken(f"took {took / 1e6:.1f} ms for {len(body)} bytes in {len(edges) + 1} pieces")
    if cut != (whole := answer(body, (), promise)):
        differing = [(a, b) for a, b in zip(cut, whole, strict=True) if a != b]
        raise Broken(f"in pieces and whole differ: {str(differing)[:600]}")
    return str(cut[0].outcome)


def blocks(seed: int, numbers: Iterable[int], failures: Path, *, nice: int = 10) -> dict[str, Any]:
    """Draw and try the streams of these blocks."""
    os.nice(nice)
    maker, found = Maker(), Counter[str]()
    for promise in PROMISES:
        if promise.expectation is not None:
            answer_problem(promise.expectation, "")  # what judges JSON is loaded late
    failed: dict[str, str] = {}
    sizes = count = longest = 0
    resident_kb = 0
    for turn, number in enumerate(numbers):
        faulthandler.dump_traceback_later(HANGS_S, exit=True)
        maker.rng = rng = Random(f"{seed} {number}")
        for index in range(BLOCK):
            body = maker.stream()
            edges, promise = cuts(rng, len(body)), PROMISES[int(rng.random() ** 2 * len(PROMISES))]
            try:
                found[hold(body, edges, promise)] += 1
            except Exception as problem:
                found["failed"] += 1
                _note(failed, problem, f"{seed}-{number}-{index}", body, edges, failures)
            sizes, count, longest = sizes + len(body), count + 1, max(longest, len(body))
        if turn == 20:
            resident_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    faulthandler.cancel_dump_traceback_later()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident_kb
    return {
        "streams": count,
        "bytes": sizes,
        "longest": longest,
        "outcomes": found,
        "failures": failed,
        "grown_mb": grown / 1024,
    }


def _note(
    failed: dict[str, str], problem: Exception, name: str, body: bytes, edges: Sequence[int], failures: Path
) -> None:
    """One of each kind is kept."""
    where = problem.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    kind = f"{type(problem).__name__} at line {where.tb_lineno if where else 0}: {re.sub(r'[0-9]+', '#', str(problem))[:60]}"
    if kind not in failed and len(failed) < 50:
        failures.mkdir(parents=True, exist_ok=True)
        (failures / name).write_bytes(body)
        failed[kind] = f"{failures / name} cut at {list(edges)[:20]}: {str(problem)[:600]}"
        print(kind, failed[kind], file=sys.stderr, flush=True)
