"""Anthropic's Messages API. Held back."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import ANSWER, END, FIN, FIRST, HOLD, LAST, RST, Limits
from tests.wire.events import (
    DONE,
    MESSAGE_STOP,
    MODEL,
    PING,
    block_delta,
    block_start,
    block_stop,
    block_text,
    blocks,
    event,
    good,
    message_delta,
    message_start,
    sse,
)
from tests.wire.families import CLOSING, mail, unsaid
from tests.wire.heads import JSON, body, chunk, stream, unended

# fmt: off
CASES = (
    mail("messages: end_turn", "ok", stream(*blocks(), message_delta("end_turn"), END, MESSAGE_STOP), chunks=4, completion=4),
    mail("messages: refusal", "error_in_stream", stream(*blocks(), message_delta("refusal"), MESSAGE_STOP), "a reason of this API; the answer was withheld", arguable=True),
    mail("messages: model_context_window_exceeded", "error_in_stream", stream(*blocks(), message_delta("model_context_window_exceeded"), MESSAGE_STOP), "a reason of this API", arguable=True),
    mail("messages: vLLM's stream, [DONE] behind it", "ok", stream(event("message_start", message={"id": "chatcmpl-1", "type": "message", "role": "assistant", "content": [], "model": MODEL, "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 8, "output_tokens": 0}}), block_start(), *(step for i, w in enumerate("abcd") for step in (0.02, *((FIRST,) if i == 0 else ()), *((LAST,) if i == 3 else ()), block_text(w))), block_stop(), message_delta("max_tokens", 4, input_tokens=8), END, MESSAGE_STOP, DONE), "vLLM writes [DONE] after message_stop", engine="vllm", chunks=4, completion=4),
    mail("messages: llama.cpp's stream", "ok", stream(message_start(6, 0, cache_read_input_tokens=2), block_start(), FIRST, *(block_text(w) for w in "abc"), LAST, block_text("d"), block_stop(), message_delta("max_tokens", 4), END, MESSAGE_STOP), "llama-server", engine="llamacpp", chunks=4, completion=4),
    mail("messages: redacted thinking, then text", "ok", stream(message_start(), block_start(0, type="redacted_thinking", data="xxxx"), block_stop(), block_start(1), 0.1, ANSWER, block_text("a", 1), LAST, block_text("b", 1), block_stop(1), *CLOSING), "redacted thinking has no text", completion=4, arguable=True),
    mail("messages: citations", "ok", stream(message_start(), block_start(), FIRST, block_text("a"), block_delta("citations_delta", citation={"type": "char_location"}), block_text("b"), block_text("c"), LAST, block_text("d"), block_stop(), *CLOSING), "a citation is no text", chunks=4, completion=4, arguable=True),
    mail("messages: an unknown event type", "ok", stream(message_start(), event("future_event", x=1), block_start(), FIRST, *(block_text(w) for w in "abc"), LAST, block_text("d"), block_stop(), *CLOSING), "the API's own versioning rule: unknown events are ignored", chunks=4, completion=4),
    mail("messages: message_start and ping long before the text", "ok", stream(message_start(), PING, 0.15, *blocks()[1:], *CLOSING), "TTFT is not taken from message_start", chunks=4),
    mail("messages: empty text deltas", "ok", stream(message_start(), block_start(), block_text(""), 0.1, FIRST, block_text("a"), block_text(""), LAST, block_text("b"), block_stop(), *CLOSING), "an empty text is no content", chunks=2, completion=4),
    mail("messages: message_stop, then held open", "ok", (*unended(*blocks(), *CLOSING), HOLD), "message_stop ends the answer", chunks=4, completion=4),
    mail("messages: message_stop, then FIN without the last chunk", "ok", (*unended(*blocks(), *CLOSING), FIN), "message_stop ends the answer", chunks=4, completion=4),
    mail("messages: clean end without message_delta", "truncated", stream(*blocks()), "no stop reason"),
    mail("messages: closed between deltas", "truncated", (*unended(*blocks(2)[:-1]), 0.02, FIN), "no stop reason", chunks=2),
    mail("messages: reset between message_delta and message_stop", "reset", (*unended(*blocks(), message_delta()), 0.02, RST), "no last event", chunks=4, arguable=True),
    unsaid("messages: api_error", event("error", error={"type": "api_error", "message": "Internal server error"}, request_id="req_1"), "Internal server error"),
    unsaid("messages: error without a message", event("error", error={"type": "overloaded_error"}), "overloaded_error"),
    unsaid("messages: chat's error object without an event name", sse({"error": {"message": "gateway's words", "code": 502}}), "gateway's words"),
    mail("messages: error at once", "error_in_stream", stream(event("error", error={"type": "rate_limit_error", "message": "Number of tokens has exceeded your rate limit"})), "an error inside a 200", detail="exceeded your rate limit"),
    mail("messages: 429 with retry-after", "http_429", body("429 Too Many Requests", {"type": "error", "error": {"type": "rate_limit_error", "message": "rate limit"}}, JSON, "retry-after: 3"), "the status decides", detail="rate limit"),
    mail("messages: silence after message_start and pings", "timeout_first_token", (*unended(message_start(), PING, block_start()), *((0.1, chunk(PING)) * 6), HOLD), "a ping is no content", limits=Limits(first_token=0.4)),
    mail("messages: no content at all", "empty", stream(message_start(), message_delta("end_turn", 0), MESSAGE_STOP), "at least one content token"),
    mail("messages: cumulative usage grows", "ok", stream(message_start(8, 1), block_start(), FIRST, block_text("a"), block_text("b"), event("message_delta", delta={}, usage={"output_tokens": 2}), block_text("c"), LAST, block_text("d"), block_stop(), message_delta("max_tokens", 4), END, MESSAGE_STOP), "usage is cumulative: the last one counts", chunks=4, completion=4),
    mail("messages: no usage", "ok", stream(event("message_start", message={"id": "m", "type": "message", "role": "assistant", "content": [], "model": MODEL}), *blocks()[1:], event("message_delta", delta={"stop_reason": "end_turn"}), END, MESSAGE_STOP), "without usage n is absent", chunks=4, completion=None, tokens_after_first=None),
    mail("messages: usage only in message_start", "ok", stream(*blocks(), event("message_delta", delta={"stop_reason": "end_turn"}), END, MESSAGE_STOP), "output_tokens: 1 at the start is not the answer's count", chunks=4, completion=(None, 1), arguable=True),
    mail("messages: chat chunks instead", "malformed", stream(*good()), "another API's shape", arguable=True),
    mail("messages: not streamed, an error object with 200", "error_in_stream", body("200 OK", {"type": "error", "error": {"type": "api_error", "message": "late refusal"}}), "an error object inside a 200", stream=False, detail="late refusal"),
)
