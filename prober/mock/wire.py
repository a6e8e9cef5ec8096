"""Bytes of an answer in the format of vLLM 0.32, with switches for other formats."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson

from prober.mock.completion_request import CompletionRequest, error_body
from prober.mock.record import Record
from prober.mock.structured_answer import PIECE_CHARS, deltas, message

FINGERPRINT = "vllm-0.32.0-mock"
COMMENT, DONE = b": keep-alive\n\n", b"data: [DONE]\n\n"

# Each is one token in common vocabularies.
_FREQUENT = (
    "the of and to in a is that for it as was with be by on not he his but at are this have had from or one they which you were "
    "all her she there would their we him been has when who will no more if out so up said what its about than into them can "
    "only other time new"
)
WORDS = tuple(f" {word}" for word in _FREQUENT.split())


@dataclass(frozen=True, slots=True)
class Wire:
    """Format of the stream of an answer.

    has_usage: usage is sent if requested; False: never
    reasoning_field: `reasoning`, or `reasoning_content`
    done: the stream ends with `[DONE]`
    """

    has_usage: bool = True
    done: bool = True
    reasoning_field: str = "reasoning"


class Chunks:
    """Composes the events of one answer."""

    def __init__(self, wire: Wire, completion: CompletionRequest, record: Record, created_s: int) -> None:
        self._wire, self._completion, self._record = wire, completion, record
        self._identity = {
            "id": answer_id(completion, record),
            "object": "chat.completion.chunk" if completion.chat else "text_completion",
            "created": created_s,
            "model": completion.model,
        }
        self._final_usage = wire.has_usage and completion.include_usage
        self._running_usage = self._final_usage and completion.continuous_usage
        self._reasoned = 0
        self._deltas = deltas(completion.document, completion.tool) if completion.document else None

    def role(self) -> bytes:
        """The chunk with the role and without content."""
        delta = {"role": "assistant", "content": ""}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._event([choice], self._usage_so_far(0) | {"prompt_token_ids": None, "prompt_text": None})

    def content(self, sent: int, *, reasoning: bool, last: bool) -> bytes:
        """The chunk of the token after the first `sent` tokens. The last chunk has the finish reason."""
        text = WORDS[sent % len(WORDS)]
        if reasoning:
            self._reasoned = sent + 1
            delta: dict[str, Any] = {self._wire.reasoning_field if self._completion.chat else "content": text}
        elif self._deltas is None:
            delta = {"content": text}
        else:
            delta = next(iter(self._deltas[sent - self._reasoned :]), {})  # none is left in an endless answer
        return self._event([self._choice(delta, last=last)], self._usage_so_far(sent + 1))

    def finish(self) -> bytes:
        """The chunk with the finish reason and without content."""
        return self._event([self._choice({}, last=True)], self._usage_so_far(0))

    def ending(self, done: bool) -> Iterator[bytes]:
        """Yield the events after the last content: usage if requested, and `[DONE]`."""
        if self._final_usage:
            record = self._record
            total = usage(self._completion, record, record.completion_tokens, self._reasoned)
            yield self._event([], {"usage": total, "system_fingerprint": FINGERPRINT, "metrics": metrics(record)})
        if done:
            yield DONE

    def error(self) -> bytes:
        """An error object within the stream, as in vLLM."""
        return b"data: " + error_body("EngineCore encountered an issue.", "InternalServerError", 500) + b"\n\n"

    def broken(self) -> bytes:
        """A chunk with incomplete JSON."""
        before, text, _ = self._event([self._choice({"content": " bro"}, last=False)]).partition(b" bro")
        return before + text + b"\n\n"

    def huge(self, size: int, piece: int = 1 << 20) -> Iterator[bytes]:
        """Yield the pieces of one content chunk with `size` bytes of text on one line."""
        before, _, after = self._event([self._choice({"content": "TEXT"}, last=False)]).partition(b"TEXT")
        yield before
        for _ in range(size // piece):
            yield b"x" * piece
        yield b"x" * (size % piece) + after

    def _event(self, choices: list[dict[str, Any]], more: Mapping[str, Any] = MappingProxyType({})) -> bytes:
        return b"data: " + orjson.dumps({**self._identity, "choices": choices, **more}) + b"\n\n"

    def _choice(self, delta: Mapping[str, Any], *, last: bool) -> dict[str, Any]:
        finish_reason = self._completion.finish_reason if last else None
        ending: dict[str, Any] = {"logprobs": None, "finish_reason": finish_reason}
        if not self._completion.chat:
            nothing = {"stop_reason": None, "prompt_token_ids": None, "token_ids": None}
            return {"index": 0, "text": delta.get("content", ""), **ending, **nothing}
        if last:
            ending["stop_reason"] = None
        return {"index": 0, "delta": delta, **ending, "token_ids": None}

    def _usage_so_far(self, sent: int) -> dict[str, Any]:
        if not self._running_usage:
            return {}
        prompt = self._record.prompt_tokens
        details = {"reasoning_tokens": self._reasoned} if self._reasoned else None
        counts = {"prompt_tokens": prompt, "total_tokens": prompt + sent, "completion_tokens": sent}
        return {"usage": counts | {"completion_tokens_details": details}}


def _text(begin: int, end: int) -> str:
    return "".join(WORDS[i % len(WORDS)] for i in range(begin, end))


def answer_id(completion: CompletionRequest, record: Record) -> str:
    """Id of an answer: `chatcmpl-` or `cmpl-`, and the id of the request."""
    return ("chatcmpl-" if completion.chat else "cmpl-") + record.id


def usage(
    completion: CompletionRequest, record: Record, completion_tokens: int, reasoning_tokens: int
) -> dict[str, Any]:
    """The usage at the end of an answer. As in vLLM with a reasoning parser, reasoning tokens are counted separately."""
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
    """Server measurements, as in vLLM with `--enable-per-request-metrics`: its first token counts from the end of the queue.

    None before any content.
    """
    if not record.writes or record.started_ns is None:
        return None
    first_ns, last_ns, n = record.writes[0], record.writes[-1], record.completion_tokens
    return {
        "time_to_first_token_ms": (first_ns - record.started_ns) / 1e6,
        "generation_time_ms": (last_ns - first_ns) / 1e6,
        "queue_time_ms": (record.started_ns - record.received_ns) / 1e6,
        "mean_itl_ms": (last_ns - first_ns) / 1e6 / (n - 1) if n > 1 else None,
        "tokens_per_second": n * 1e9 / max(1, last_ns - record.started_ns),
    }


def plain_answer(
    wire: Wire, completion: CompletionRequest, record: Record, created_s: int, tokens: int, reasoning: int
) -> bytes:
    """The unstreamed answer of `tokens` tokens, the first `reasoning` of which are reasoning."""
    fields: dict[str, Any] = {"content": _text(reasoning, tokens)}
    if completion.document:
        document = completion.document[: PIECE_CHARS * (tokens - reasoning)]
        fields = message(document, completion.tool)
    choice: dict[str, Any] = {"index": 0}
    if completion.chat:
        choice["message"] = {"role": "assistant", **fields}
        if reasoning:
            choice["message"][wire.reasoning_field] = _text(0, reasoning)
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
    if wire.has_usage:
        answer["usage"] = usage(completion, record, tokens, reasoning)
    return orjson.dumps(answer)
