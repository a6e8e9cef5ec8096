"""Anthropic's Messages API."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import ANSWER, END, FIRST, HOLD, LAST, RST, Limits
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
    message_delta,
    message_start,
    sse,
)
from tests.wire.families import CLOSING, lines_end_with, mail, unnamed, unsaid
from tests.wire.heads import body, chunk, stream, unended

# fmt: off
CASES = (
    mail("messages: Anthropic's stream", "ok", stream(*blocks(), *CLOSING), chunks=4, completion=4, tokens_after_first=3),
    mail("messages: stop_sequence", "ok", stream(*blocks(), message_delta("stop_sequence"), END, MESSAGE_STOP), chunks=4),
    mail("messages: pause_turn", "error_in_stream", stream(*blocks(), message_delta("pause_turn"), MESSAGE_STOP), "the turn is not over", arguable=True),
    mail("messages: an unknown stop reason", "error_in_stream", stream(*blocks(), message_delta("evicted"), MESSAGE_STOP), "an unknown reason is a named failure", detail="evicted"),
    mail("messages: vLLM of old, usage beside the message", "ok", stream(event("message_start", message={"id": "chatcmpl-1", "content": [], "model": MODEL}, usage={"input_tokens": 8, "output_tokens": 0}), block_start(), FIRST, *(block_text(w) for w in "abc"), LAST, block_text("d"), block_stop(), message_delta("max_tokens", 4, input_tokens=8), END, MESSAGE_STOP, DONE), "vLLM's first release of this API", engine="vllm", chunks=4, completion=4),
    mail("messages: thinking with signature, then text", "ok", stream(message_start(), block_start(0, type="thinking", thinking="", signature=""), 0.02, FIRST, block_delta("thinking_delta", thinking="hm"), 0.02, block_delta("thinking_delta", thinking="ok"), block_delta("signature_delta", signature="EqQB"), block_stop(), block_start(1), 0.05, ANSWER, block_text("Yes", 1), 0.02, LAST, block_text(".", 1), block_stop(1), *CLOSING), "thinking is content; a signature is none", chunks=4, completion=4),
    mail("messages: tool use", "ok", stream(message_start(), block_start(0, type="tool_use", id="t1", name="f", input={}), block_delta("input_json_delta", partial_json=""), 0.02, block_delta("input_json_delta", partial_json='{"a"'), 0.02, LAST, block_delta("input_json_delta", partial_json=":1}"), block_stop(), message_delta("tool_use"), END, MESSAGE_STOP), "tool input is content", completion=4),
    mail("messages: an unknown delta type", "ok", stream(message_start(), block_start(), FIRST, block_text("a"), block_delta("future_delta", x=1), block_text("b"), block_text("c"), LAST, block_text("d"), block_stop(), *CLOSING), "unknown deltas are ignored", chunks=4, completion=4),
    mail("messages: pings all along", "ok", stream(message_start(), PING, 0.05, PING, block_start(), FIRST, block_text("a"), PING, block_text("b"), block_text("c"), LAST, block_text("d"), PING, block_stop(), *CLOSING), "a ping is no content", chunks=4, completion=4),
    mail("messages: block_start with text in it", "ok", stream(message_start(), block_start(0, type="text", text=""), 0.05, FIRST, block_text("abc"), LAST, block_text("d"), block_stop(), *CLOSING), "the start of a block is no content", chunks=2, completion=4),
    mail("messages: without event names", "ok", stream(*unnamed((*blocks(), *CLOSING))), "the type is in the data; Anthropic's client reads named events only", arguable=True),
    mail("messages: message_stop, then reset", "ok", (*unended(*blocks(), *CLOSING), 0.02, RST), "message_stop ends the answer", chunks=4, completion=4),
    mail("messages: clean end without message_stop", "truncated", stream(*blocks(), message_delta()), "no last event", arguable=True),
    mail("messages: message_stop without message_delta", "truncated", stream(*blocks(), MESSAGE_STOP), "no stop reason"),
    mail("messages: reset between deltas", "reset", (*unended(*blocks(2)[:-1]), 0.02, RST), "reset", chunks=2),
    unsaid("messages: overloaded_error", event("error", error={"type": "overloaded_error", "message": "Overloaded"}), "Overloaded"),
    unsaid("messages: vLLM's internal_error and [DONE]", event("error", error={"type": "internal_error", "message": "EngineCore died"}) + DONE, "EngineCore died", engine="vllm"),
    unsaid("messages: error in words", sse("proxy lost the upstream", event="error"), "proxy lost the upstream", verdict="malformed"),
    unsaid("messages: error type without an event name", sse({"type": "error", "error": {"type": "api_error", "message": "unnamed words"}}), "unnamed words"),
    mail("messages: 529 overloaded", "http_5xx", body("529 ", {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}), "the status decides", detail="Overloaded"),
    mail("messages: 401", "rejected", body("401 Unauthorized", {"type": "error", "error": {"type": "authentication_error", "message": "invalid x-api-key"}}), "our token", detail="invalid x-api-key"),
    mail("messages: silence between deltas, pings go on", "timeout_stall", (*unended(*blocks(2)[:-1]), *((0.1, chunk(PING)) * 6), HOLD), "a ping does not feed the limit", limits=Limits(stall=0.4)),
    mail("messages: an empty text block", "empty", stream(message_start(), block_start(), block_stop(), message_delta("end_turn", 1), MESSAGE_STOP), "at least one content token"),
    mail("messages: cached input tokens", "ok", stream(message_start(4, 1, cache_read_input_tokens=96, cache_creation_input_tokens=0), *blocks()[1:], *CLOSING), "input_tokens leaves the cached ones out", chunks=4, completion=4),
    mail("messages: absurd usage", "ok", stream(*blocks(), message_delta("max_tokens", 10**13), END, MESSAGE_STOP), "an absurd usage is refused", chunks=4, completion=(None, 1)),
    mail("messages: JSON error with 200", "error_in_stream", body("200 OK", {"type": "error", "error": {"type": "not_found_error", "message": "model: nope"}}), "a 2xx that is no event stream", detail="model: nope"),
    mail("messages: not streamed", "ok", body("200 OK", {"id": "m", "type": "message", "role": "assistant", "model": MODEL, "content": [{"type": "text", "text": "Hello"}], "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 8, "output_tokens": 4}}), "a complete answer has no TTFT", stream=False, completion=4),
    mail("messages: CRLF and comments", "ok", stream(*lines_end_with(b"\r\n", (b": ping\n\n", *blocks(), *CLOSING))), "WHATWG: a line ends with CRLF, LF or CR", chunks=4, completion=4),
)
