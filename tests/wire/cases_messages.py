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
    good,
    message_delta,
    message_start,
    sse,
)
from tests.wire.families import CLOSING, MESSAGE, WHOLE, mail, unnamed, unsaid
from tests.wire.heads import body, chunk, stream, unended

# fmt: off
CASES = (
    mail("messages: Anthropic's stream", "ok", stream(*blocks(), *CLOSING), chunks=4, completion=4, tokens_after_first=3),
    mail("messages: pause_turn", "error_in_stream", stream(*blocks(), message_delta("pause_turn"), MESSAGE_STOP), "the turn is not over", detail="'pause_turn': the server paused the turn"),
    mail("messages: vLLM of old, usage beside the message", "ok", stream(event("message_start", message={"id": "chatcmpl-1", "content": [], "model": MODEL}, usage={"input_tokens": 8, "output_tokens": 0}), block_start(), FIRST, *(block_text(w) for w in "abc"), LAST, block_text("d"), block_stop(), message_delta("max_tokens", 4, input_tokens=8), END, MESSAGE_STOP, DONE), "vLLM's first release of this API", engine="vllm", chunks=4, completion=4),
    mail("messages: thinking with signature, then text", "ok", stream(message_start(), block_start(0, type="thinking", thinking="", signature=""), 0.02, FIRST, block_delta("thinking_delta", thinking="hm"), 0.02, block_delta("thinking_delta", thinking="ok"), block_delta("signature_delta", signature="EqQB"), block_stop(), block_start(1), 0.05, ANSWER, block_text("Yes", 1), 0.02, LAST, block_text(".", 1), block_stop(1), *CLOSING), "thinking is content; a signature is none", chunks=4, completion=4),
    mail("messages: tool use", "ok", stream(message_start(), block_start(0, type="tool_use", id="t1", name="f", input={}), block_delta("input_json_delta", partial_json=""), 0.02, block_delta("input_json_delta", partial_json='{"a"'), 0.02, LAST, block_delta("input_json_delta", partial_json=":1}"), block_stop(), message_delta("tool_use"), END, MESSAGE_STOP), "tool input is content", completion=4),
    mail("messages: block_start with text in it", "ok", stream(message_start(), block_start(0, type="text", text=""), 0.05, FIRST, block_text("abc"), LAST, block_text("d"), block_stop(), *CLOSING), "the start of a block is no content", chunks=2, completion=4),
    mail("messages: without event names", "ok", stream(*unnamed((*blocks(), *CLOSING))), "the type is in the data; Anthropic's client reads named events only"),
    mail("messages: message_stop, then reset", "ok", (*unended(*blocks(), *CLOSING), 0.02, RST), "message_stop ends the answer", chunks=4, completion=4),
    mail("messages: clean end without message_stop", "truncated", stream(*blocks(), message_delta()), "no last event", detail="finish reason 'max_tokens', but no message_stop"),
    mail("messages: clean end inside the text", "truncated", stream(*blocks(2)[:-1]), "no last event", detail="without message_stop after 2 content chunks"),
    unsaid("messages: Anthropic's overload in the stream", event("error", error={"details": None, "type": "overloaded_error", "message": "Overloaded"}, request_id="req_1"), "inside a 200 answer: Overloaded (overloaded_error)"),
    mail("messages: Anthropic's overload before the stream", "http_5xx", body("529 ", {"type": "error", "error": {"details": None, "type": "overloaded_error", "message": "Overloaded"}, "request_id": "req_1"}), "RFC 9110 §15: treat as 5xx", detail="HTTP 529: Overloaded (overloaded_error)"),
    mail("messages: message_stop without message_delta", "truncated", stream(*blocks(), MESSAGE_STOP), "no stop reason", detail="without a finish reason"),
    unsaid("messages: vLLM's internal_error and [DONE]", event("error", error={"type": "internal_error", "message": "EngineCore died"}) + DONE, "EngineCore died", engine="vllm"),
    unsaid("messages: error in words", sse("proxy lost the upstream", event="error"), "proxy lost the upstream", verdict="malformed"),
    mail("messages: silence between deltas, pings go on", "timeout_stall", (*unended(*blocks(2)[:-1]), *((0.1, chunk(PING)) * 6), HOLD), "a ping does not feed the limit", limits=Limits(stall=0.4)),
    mail("messages: an empty text block", "empty", stream(message_start(), block_start(), block_stop(), message_delta("end_turn", 1), MESSAGE_STOP), "at least one content token"),
    mail("messages: cached input tokens", "ok", stream(message_start(4, 1, cache_read_input_tokens=96, cache_creation_input_tokens=0), *blocks()[1:], *CLOSING), "input_tokens leaves the cached ones out", chunks=4, completion=4),
    mail("messages: not streamed", "ok", body("200 OK", {"id": "m", "type": "message", "role": "assistant", "model": MODEL, "content": [{"type": "text", "text": "Hello"}], "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 8, "output_tokens": 4}}), "a complete answer has no TTFT", stream=False, completion=4),
    mail("messages: golden words, and a stop reason of a tool call", "wrong_answer", stream(*blocks(), message_delta("tool_use"), MESSAGE_STOP), "no tool is called", golden="Hello", detail="'tool_use', but no tool is called"),
    mail("messages: golden words", "ok", stream(*blocks(), message_delta("end_turn"), MESSAGE_STOP), "the words are there", golden="Hello"),
    mail("messages: refusal", "error_in_stream", stream(*blocks(), message_delta("refusal"), MESSAGE_STOP), "a reason of this API; the answer was withheld"),
    mail("messages: vLLM's stream, [DONE] behind it", "ok", stream(event("message_start", message={"id": "chatcmpl-1", "type": "message", "role": "assistant", "content": [], "model": MODEL, "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 8, "output_tokens": 0}}), block_start(), *(step for i, w in enumerate("abcd") for step in (0.02, *((FIRST,) if i == 0 else ()), *((LAST,) if i == 3 else ()), block_text(w))), block_stop(), message_delta("max_tokens", 4, input_tokens=8), END, MESSAGE_STOP, DONE), "vLLM writes [DONE] after message_stop", engine="vllm", chunks=4, completion=4),
    mail("messages: redacted thinking, then text", "ok", stream(message_start(), block_start(0, type="redacted_thinking", data="xxxx"), block_stop(), block_start(1), 0.1, ANSWER, block_text("a", 1), LAST, block_text("b", 1), block_stop(1), *CLOSING), "redacted thinking has no text", completion=4),
    mail("messages: citations", "ok", stream(message_start(), block_start(), FIRST, block_text("a"), block_delta("citations_delta", citation={"type": "char_location"}), block_text("b"), block_text("c"), LAST, block_text("d"), block_stop(), *CLOSING), "a citation is no text", chunks=4, completion=4),
    mail("messages: an unknown event type", "ok", stream(message_start(), event("future_event", x=1), block_start(), FIRST, *(block_text(w) for w in "abc"), LAST, block_text("d"), block_stop(), *CLOSING), "the API's own versioning rule: unknown events are ignored", chunks=4, completion=4),
    mail("messages: message_start and ping long before the text", "ok", stream(message_start(), PING, 0.15, *blocks()[1:], *CLOSING), "TTFT is not taken from message_start", chunks=4),
    mail("messages: clean end without message_delta", "truncated", stream(*blocks()), "no stop reason"),
    mail("messages: reset between message_delta and message_stop", "reset", (*unended(*blocks(), message_delta()), 0.02, RST), "no last event", chunks=4),
    unsaid("messages: chat's error object without an event name", sse({"error": {"message": "gateway's words", "code": 502}}), "gateway's words"),
    mail("messages: cumulative usage grows", "ok", stream(message_start(8, 1), block_start(), FIRST, block_text("a"), block_text("b"), event("message_delta", delta={}, usage={"output_tokens": 2}), block_text("c"), LAST, block_text("d"), block_stop(), message_delta("max_tokens", 4), END, MESSAGE_STOP), "usage is cumulative: the last one counts", chunks=4, completion=4),
    mail("messages: usage only in message_start", "ok", stream(*blocks(), event("message_delta", delta={"stop_reason": "end_turn"}), END, MESSAGE_STOP), "output_tokens: 1 at the start is not the answer's count", chunks=4, completion=(None, 1)),
    mail("messages: chat chunks instead", "malformed", stream(*good()), "another API's shape"),
    mail("messages: not streamed, an error object with 200", "error_in_stream", body("200 OK", {"type": "error", "error": {"type": "api_error", "message": "late refusal"}}), "an error object inside a 200", stream=False, detail="late refusal"),
    mail("messages: a whole message in one event", "malformed", stream(sse(MESSAGE), DONE), WHOLE, detail="the whole answer in one event"),
    mail("messages: text only inside message_start", "malformed", stream(event("message_start", message=MESSAGE), message_delta("end_turn"), MESSAGE_STOP), WHOLE, detail="the whole answer in one event"),
)
