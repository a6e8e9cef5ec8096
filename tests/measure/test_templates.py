"""Templates of chunks: what they read is what the full parser reads, for formats that they have not seen."""

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prober.measure import templates as module
from prober.measure.api import APIS, CHAT, MESSAGES, RESPONSES, Api
from prober.measure.chat import Chunk
from prober.measure.recording import Recording
from prober.measure.templates import Templates
from prober.measure.timeline import Timeline

STREAMS = Path(__file__).parent.parent / "streams"
TEXTS = st.one_of(
    st.sampled_from(
        ["", " a", "\n", '"', "\\", '\\"', "é", "😀", "\x7f", "\x00", "[DONE]", "error", 'x"}', "\ud83d", "\udc00", "0"]
    ),
    st.sampled_from(["<think>", "</think>", "</thi", "nk>", "`"]),
    st.text(max_size=6),
)
COUNTS = st.sampled_from([0, 1, 9, 10, 63, 10**9 - 1, 10**9, 10**9 + 1, -1, 2.0, 2.5, None, "7", 2**70])
FORMATS = (
    "vllm",
    "sglang",
    "tgi",
    "ollama",
    "llamacpp",
    "completions",
    "reasoning",
    "parts",
    "tool",
    "constant call",
    "errors",
)


def document(form: str, number: int, text: str, count: Any) -> dict[str, Any]:
    """A chunk as an engine of this kind writes it."""
    usage = {"prompt_tokens": 7, "total_tokens": count, "completion_tokens": count}
    chunk: dict[str, Any] = {"id": f"c{number // 3}", "created": number, "model": "m"}
    choice: dict[str, Any] = {"index": 0, "delta": {"content": text}, "finish_reason": None}
    if form == "vllm":
        chunk["usage"] = usage
    elif form == "sglang":
        choice["delta"] = {"role": None, "content": text, "reasoning_content": None}
    elif form == "tgi":
        chunk["system_fingerprint"] = text
    elif form == "ollama":
        chunk["usage"] = {"prompt_tokens": count, "completion_tokens": count}
    elif form == "llamacpp":
        chunk["timings"] = {"cache_n": count, "prompt_n": 3, "predicted_n": count, "predicted_ms": number / 7}
    elif form == "completions":
        choice = {"index": 0, "text": text, "logprobs": {"token_logprobs": [-0.5 * number]}}
    elif form == "reasoning":
        choice["delta"] = {"reasoning_content": text} if number % 4 < 2 else {"content": text}
    elif form == "parts":
        kind = "thinking" if number % 3 else "text"
        choice["delta"] = {"content": [{"type": kind, "text": text}, {"type": "text", "text": "b"}]}
    elif form == "tool":
        call = {"index": 0, "id": f"t{number}", "function": {"name": None, "arguments": text}}
        choice["delta"] = {"tool_calls": [call]}
    elif form == "constant call":
        choice["delta"] |= {"tool_calls": [{"index": 0, "id": "t", "function": {"name": "f", "arguments": "{}"}}]}
    elif form == "errors":
        chunk["object"] = text
        choice["index"] = count
    return chunk | {"choices": [choice]}


def event(payload: bytes, name: str = "") -> bytes:
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + payload + b"\n\n"


def result(pieces: Sequence[bytes], api: Api = CHAT, templates: Templates | None = None) -> tuple[Any, ...]:
    """All that a recording tells of the pieces, which arrive one after the other."""
    recording = Recording(api=api, templates=templates, keep_answer=True)
    recording.feed_pieces(list(enumerate(pieces, 1)))
    recording.finish()
    timeline = recording.complete(Timeline(0))
    end = recording.observed_end(transport_verdict=None, status=200)
    stamps, tokens = list(timeline.content_ns), list(timeline.content_tokens or ())
    return (
        *(end, recording.text, recording.usage, recording.answered_model, recording.last_ns, stamps, tokens),
        *(timeline.first_ns, timeline.first_answer_ns, recording.refuse_impossible_usage(0), recording.calls),
    )


@given(
    st.lists(
        st.tuples(st.sampled_from(FORMATS), st.lists(st.tuples(TEXTS, COUNTS), min_size=2, max_size=8)), max_size=5
    ),
    st.booleans(),
)
def test_templates_read_what_the_parser_reads(streams: list[tuple[str, list[tuple[str, Any]]]], is_ascii: bool) -> None:
    """Streams of one target, in formats that follow each other, are read alike with what was learnt from earlier ones."""
    templates = Templates(CHAT.parse_event)
    for form, chunks in [*streams, *streams]:
        documents = [document(form, number, *chunk) for number, chunk in enumerate(chunks)]
        texts = [json.dumps(chunk, ensure_ascii=is_ascii, separators=(",", ":")) for chunk in documents]
        pieces = [event(text.encode("utf-8", "surrogatepass")) for text in texts]
        assert result([*pieces, *pieces, b"data: [DONE]\n\n"], templates=templates) == result(
            [*pieces, *pieces, b"data: [DONE]\n\n"]
        )


@pytest.mark.parametrize("path", sorted(STREAMS.glob("*.http")), ids=lambda path: path.name)
def test_captured_streams_are_read_alike(path: Path) -> None:
    """Streams of real servers, event by event and cut in two places, several times so that all is learnt."""
    body = path.read_bytes().partition(b"\r\n\r\n")[2]
    api = APIS.get(path.stem.rpartition("_")[2], CHAT)
    ends = [0, *(match.end() for match in re.finditer(rb"\r?\n\r?\n", body)), len(body)]
    pieces = [body[a:b] for a, b in itertools.pairwise(ends)]
    expected, templates = result(pieces, api), Templates(api.parse_event)
    for _ in range(4):
        assert result(pieces, api, templates) == expected
    for cut in range(0, len(body), 7):
        assert result([body[:cut], body[cut:]], api, templates)[1:4] == expected[1:4]


def parsed(pieces: Sequence[bytes], templates: Templates, api: Api = CHAT) -> int:
    """Chunks of the pieces that are parsed in full."""
    calls = 0

    class Counting(Templates):
        def learn(self, name: bytes, payload: bytes) -> None:
            nonlocal calls
            calls += 1
            templates.learn(name, payload)

        @property
        def is_empty(self) -> bool:
            return templates.is_empty

        def read(self, pieces: Sequence[tuple[int, bytes]]) -> "module.ReadChunks | None":
            return templates.read(pieces)

    recording = Recording(api=api, templates=Counting(api.parse_event))
    for at in range(0, len(pieces), 16):
        recording.feed_pieces(list(enumerate(pieces[at : at + 16])))
    recording.parse_pending()
    assert recording.content_chunks == len(pieces)
    return calls


@pytest.mark.parametrize("form", ["vllm", "sglang", "ollama", "completions"])
def test_after_a_few_streams_hardly_a_chunk_is_parsed_in_full(form: str) -> None:
    """The format is learnt from the target's own streams, also where ids, times and prompts change from one to the next."""
    templates = Templates(CHAT.parse_event)
    for stream in range(12):
        pieces = [event(json.dumps(document(form, 100 * stream + n, f" word{n}", 1 + n)).encode()) for n in range(64)]
        count = parsed(pieces, templates)
    assert count <= 2


@pytest.mark.parametrize("api", [RESPONSES, MESSAGES], ids=lambda api: api.name)
def test_named_events_have_templates(api: Api) -> None:
    """The Responses and Messages APIs name their events."""
    templates = Templates(api.parse_event)
    for stream in range(6):
        pieces = []
        for n in range(40):
            kind = "response.output_text.delta" if api is RESPONSES else "content_block_delta"
            delta: Any = f" w{n}" if api is RESPONSES else {"type": "text_delta", "text": f" w{n}"}
            body = {"type": kind, "item_id": f"i{stream}", "sequence_number": 40 * stream + n, "delta": delta}
            pieces.append(event(json.dumps(body).encode(), kind))
        count = parsed(pieces, templates, api)
    assert count <= 2


@pytest.mark.parametrize(
    "values",
    [
        ['"model":"a"', '"model":"b"'],  # the model that answers is told
        ['"choices":[{"index":0', '"choices":[{"index":1'],
        ['"error":"a","x":1', '"error":"b","x":1'],
        ['"x":{"a":1}', '"x":{"b":1}'],  # a key is no value
    ],
)
def test_a_gap_that_means_something_else_gives_no_template(values: list[str]) -> None:
    """Chunks that differ in anything but text, counts and what has no influence are parsed in full."""
    templates = Templates(CHAT.parse_event)
    form = '{{"id":"i",{},"choices":[{{"index":0,"delta":{{"content":"{}"}}}}]}}'
    if "choices" in values[0]:
        form = '{{"id":"i",{},"delta":{{"content":"{}"}}}}]}}'
    pieces = [form.format(values[n % 2], f"w{n}").encode() for n in range(64)]
    for payload in pieces:
        templates.learn(b"", payload)
    assert templates.read([(1, event(pieces[0]))]) is None


def test_learning_is_rare() -> None:
    """A server whose chunks never fit costs one attempt after 2, 4, 8 and so on chunks, so it cannot occupy the event loop."""
    calls = 0

    def parse(_name: bytes, payload: bytes) -> Chunk:
        nonlocal calls
        calls += 1
        return CHAT.parse_event(b"", payload)

    templates = Templates(parse)
    for n in range(4096):
        templates.learn(b"", b'{"k%d":%d,"choices":[{"index":0,"delta":{"content":"w%d"}}]}' % (n, n, n))
    assert calls == 0
    for n in range(4096):
        templates.learn(b"", b'{"choices":[{"index":%d,"delta":{"content":"w%d"}}]}' % (n, n))
    assert calls < 100


def test_long_chunks_are_not_learnt() -> None:
    """Compiling a pattern takes time in proportion to its length."""
    templates = Templates(CHAT.parse_event)
    padding = "x" * module.MAX_PAYLOAD_BYTES
    for n in range(8):
        templates.learn(b"", json.dumps(document("vllm", n, f"w{n}", n) | {"padding": padding}).encode())
    piece = event(json.dumps(document("vllm", 8, "w8", 8) | {"padding": padding}).encode())
    assert templates.read([(1, piece)]) is None
