"""Bytes of an answer in the format of vLLM 0.32, with switches for the formats of other engines."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from prober.mock.completion_request import CompletionRequest, error_body
from prober.mock.record import Record
from prober.mock.structured_answer import PIECE_CHARS, deltas, joined, message

ROLE_CHUNKS = ("with-first", "early", "none")
USAGES = ("final", "every", "last-content", "none")
REASONING_FIELDS = ("reasoning", "reasoning_content")
LINE_ENDS = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}
FINGERPRINT = "vllm-0.32.0-mock"

# Each is one token in the common vocabularies. ASCII without quotes, so that JSON needs no escapes.
WORDS = tuple(
    b" " + word
    for word in b"the of and to in a is that for it as was with be by on not he his but at are this have had from or one "
    b"they which you were all her she there would their we him been has when who will no more if out so up said what its "
    b"about than into them can only other time new".split()
)


@dataclass(frozen=True, slots=True)
class Wire:
    """Format of the stream.

    role_chunk: `with-first`: before the first token (vLLM); `early`: at once (transformers); `none`: in the first chunk (LiteLLM)
    usage: `final`: if the request asks for it (vLLM); `every`: in every chunk; `last-content`: with the finish reason
    (transformers); `none`
    done: the stream ends with `[DONE]`
    line_end: b"\\n", b"\\r\\n" or b"\\r"
    calls: form of tool calls, see `structured_answer.deltas`
    keepalive_s: time without a write after which a comment is sent; 0: never
    """

    role_chunk: str = "with-first"
    usage: str = "final"
    done: bool = True
    reasoning_field: str = "reasoning"
    line_end: bytes = b"\n"
    keepalive_s: float = 0.0
    calls: str = "pieces"


class Chunks:
    """The events of one answer; parts that all tokens share are built once."""

    def __init__(self, wire: Wire, completion: CompletionRequest, record: Record, created_s: int) -> None:
        self._wire, self._completion, self._record = wire, completion, record
        self._end = wire.line_end * 2
        self._close = b"}" + self._end
        identity = {
            "id": answer_id(completion, record),
            "object": "chat.completion.chunk" if completion.chat else "text_completion",
            "created": created_s,
            "model": completion.model,
        }
        self._head = b"data: " + orjson.dumps(identity)[:-1] + b',"choices":['
        self._answer = self._head + (b'{"index":0,"delta":{"content":"' if completion.chat else b'{"index":0,"text":"')
        self._reasoning = (
            self._head + b'{"index":0,"delta":{"%s":"' % wire.reasoning_field.encode()
            if completion.chat
            else self._answer
        )
        self._tail = self._choice_tail(None)
        self._last_tail = self._choice_tail(completion.finish_reason)
        self._running_usage = wire.usage == "every" or (
            wire.usage == "final" and completion.include_usage and completion.continuous_usage
        )
        self._final_usage = wire.usage == "every" or (wire.usage == "final" and completion.include_usage)
        self._reasoned = 0
        self._deltas = deltas(completion.document, completion.tool, wire.calls) if completion.document else None

    @property
    def comment(self) -> bytes:
        """A keep-alive comment."""
        return b": keep-alive" + self._end

    @property
    def done(self) -> bytes:
        """The event that ends a stream."""
        return b"data: [DONE]" + self._end

    def role(self) -> bytes:
        """The chunk with the role and without content."""
        choice = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        return (
            self._head + choice + self._usage_so_far(0) + b',"prompt_token_ids":null,"prompt_text":null' + self._close
        )

    def content(self, sent: int, size: int, *, reasoning: bool, last: bool) -> bytes:
        """The chunk with `size` tokens after `sent` earlier ones; the last one gives the finish reason."""
        if size == 1:
            text = WORDS[sent % len(WORDS)]
        else:
            text = b"".join([WORDS[i % len(WORDS)] for i in range(sent, sent + size)])
        head, closed = self._reasoning if reasoning else self._answer, 0
        if self._deltas is not None and not reasoning:
            delta = joined(self._deltas[sent - self._reasoned : sent - self._reasoned + size])
            if self._completion.chat:  # closes itself, as the ends below do for a text
                head, text, closed = self._head + b'{"index":0,"delta":', orjson.dumps(delta), len(b'"}')
            else:
                text = orjson.dumps(delta["content"])[1:-1]
        if reasoning:
            self._reasoned = sent + size
        if sent == 0 and self._completion.chat and self._wire.role_chunk == "none":
            head = head.replace(b'"delta":{', b'"delta":{"role":"assistant",', 1)
        if last:
            return head + text + self._last_tail[closed:] + self._usage_at_last(sent + size) + self._close
        if self._running_usage:
            return head + text + self._tail[closed:] + self._usage_so_far(sent + size) + self._close
        return head + text + self._tail[closed:] + self._close

    def finish(self) -> bytes:
        """The chunk with the finish reason and without content."""
        if self._completion.chat:
            choice = b'{"index":0,"delta":{' + self._last_tail.removeprefix(b'"')
        else:
            choice = b'{"index":0,"text":"' + self._last_tail
        return self._head + choice + self._usage_at_last(0) + self._close

    def ending(self, done: bool) -> Iterator[bytes]:
        """The events after the last content: usage if it was requested, and `[DONE]`."""
        if self._final_usage:
            record = self._record
            final = {
                "usage": usage(self._completion, record, record.completion_tokens, self._reasoned),
                "system_fingerprint": FINGERPRINT,
                "metrics": metrics(record),
            }
            yield self._head + b"]," + orjson.dumps(final)[1:] + self._end
        if done:
            yield self.done

    def error(self) -> bytes:
        """An error object inside the stream, as vLLM sends it."""
        return b"data: " + error_body("EngineCore encountered an issue.", "InternalServerError", 500) + self._end

    def broken(self) -> bytes:
        """A chunk with incomplete JSON."""
        return self._answer + b" bro" + self._end

    def huge(self, size: int, piece: int = 1 << 20) -> Iterator[bytes]:
        """The pieces of one content chunk with `size` bytes of text on one line."""
        yield self._answer
        for _ in range(size // piece):
            yield b"x" * piece
        yield b"x" * (size % piece) + self._tail + self._close

    def _choice_tail(self, finish_reason: str | None) -> bytes:
        finish = orjson.dumps(finish_reason)
        if not self._completion.chat:
            more = b',"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]'
            return b'","logprobs":null,"finish_reason":' + finish + more
        stop = b"" if finish_reason is None else b',"stop_reason":null'
        return b'"},"logprobs":null,"finish_reason":' + finish + stop + b',"token_ids":null}]'

    def _usage_at_last(self, sent: int) -> bytes:
        if self._wire.usage == "last-content":
            return b',"usage":' + orjson.dumps(usage(self._completion, self._record, sent, self._reasoned))
        return self._usage_so_far(sent)

    def _usage_so_far(self, sent: int) -> bytes:
        if not self._running_usage:
            return b""
        prompt = self._record.prompt_tokens
        details = b'{"reasoning_tokens":%d}' % self._reasoned if self._reasoned else b"null"
        counts = b'"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d' % (prompt, prompt + sent, sent)
        return b',"usage":{' + counts + b',"completion_tokens_details":' + details + b"}"


def answer_id(completion: CompletionRequest, record: Record) -> str:
    """`chatcmpl-` or `cmpl-` and the request's own id."""
    return ("chatcmpl-" if completion.chat else "cmpl-") + record.id


def usage(
    completion: CompletionRequest, record: Record, completion_tokens: int, reasoning_tokens: int
) -> dict[str, Any]:
    """The usage object at the end of an answer; vLLM with a reasoning parser counts reasoning tokens apart."""
    cached = {"cached_tokens": record.cached_tokens}
    if completion.chat:
        cached["created_cache_tokens"] = 0
    counts: dict[str, Any] = {
        "prompt_tokens": record.prompt_tokens,
        "total_tokens": record.prompt_tokens + completion_tokens,
        "completion_tokens": completion_tokens,
        "prompt_tokens_details": cached,
    }
    if reasoning_tokens:
        counts["completion_tokens_details"] = {"reasoning_tokens": reasoning_tokens}
    return counts


def metrics(record: Record) -> dict[str, float | None] | None:
    """Measurements of the server, as sent by vLLM with `--enable-per-request-metrics`; None before any content."""
    if not record.writes or record.started_ns is None:
        return None
    first_ns, last_ns, n = record.writes[0], record.writes[-1], record.completion_tokens
    return {
        "time_to_first_token_ms": (first_ns - record.received_ns) / 1e6,
        "generation_time_ms": (last_ns - first_ns) / 1e6,
        "queue_time_ms": (record.started_ns - record.received_ns) / 1e6,
        "mean_itl_ms": (last_ns - first_ns) / 1e6 / (n - 1) if n > 1 else None,
        "tokens_per_second": n * 1e9 / max(1, last_ns - record.received_ns),
    }


def plain_answer(
    wire: Wire, completion: CompletionRequest, record: Record, created_s: int, tokens: int, reasoning: int
) -> bytes:
    """The answer without `stream`: `tokens` tokens, of which the first `reasoning` are reasoning."""
    words = [WORDS[i % len(WORDS)].decode() for i in range(tokens)]
    fields: dict[str, Any] = {"content": "".join(words[reasoning:])}
    if completion.document:
        document = completion.document[: PIECE_CHARS * (tokens - reasoning)]
        fields = message(document, completion.tool, wire.calls)
    choice: dict[str, Any] = {"index": 0}
    if completion.chat:
        choice["message"] = {"role": "assistant", **fields}
        if reasoning:
            choice["message"][wire.reasoning_field] = "".join(words[:reasoning])
    else:
        choice["text"] = fields["content"]
    answer: dict[str, Any] = {
        "id": answer_id(completion, record),
        "object": "chat.completion" if completion.chat else "text_completion",
        "created": created_s,
        "model": completion.model,
        "choices": [choice | {"logprobs": None, "finish_reason": completion.finish_reason, "stop_reason": None}],
        "system_fingerprint": FINGERPRINT,
    }
    if wire.usage != "none":
        answer["usage"] = usage(completion, record, tokens, reasoning)
    return orjson.dumps(answer)
