"""Answers that are not streamed (`stream: false`). Held back."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import END, FIN, HOLD, Case, Limits
from tests.wire.events import compact, message, tokens_used
from tests.wire.families import plain
from tests.wire.heads import CHUNKED, JSON, drip, head, stream

# fmt: off
CASES = (
    plain("a chat completion without usage", "ok", message("Hello there", "stop"), completion=None, tokens_after_first=None),
    plain("a chat completion with finish reason error", "error_in_stream|malformed|truncated", message("Hel", "error", tokens_used(1)), "a named failure", detail="error"),
    plain("a chat completion with null content and no calls", "empty", message(None, "stop", tokens_used(0)), "at least one content token"),
    plain("a chat completion of reasoning only", "ok", message(None, "length", tokens_used(4), reasoning_content="Hmm"), "reasoning is content", completion=4),
    plain("an error object with 200", "error_in_stream|malformed", {"error": {"message": "engine is asleep"}}, "an error object inside a 200", detail="engine is asleep"),
    plain("an empty body", "malformed", "", "nothing was answered", arguable=True),
    plain("an empty list of choices", "malformed", {"id": "x", "choices": [], "usage": tokens_used(0)}, "no answer", arguable=True),
    plain("a status of 500", "http_5xx", {"error": {"message": "no GPU"}}, "the status decides", status="500 Internal Server Error", detail="no GPU"),
    Case("a completion in chunks of 10 bytes", "ok", stream(*drip(compact(message("Hello there", "stop", tokens_used(4))).encode(), 10, 0.0005), head=head("200 OK", JSON, CHUNKED)), "framing is not content", stream=False, engine="", completion=4),
    Case("a completion that is cut", "truncated", (head("200 OK", JSON, "content-length: 400"), compact(message("Hello there", "stop", tokens_used(4))).encode()[:90], 0.02, FIN), "RFC 9112 §8: incomplete", stream=False, engine="", arguable=True),
    Case("silence where no stream was requested", "timeout_total", (HOLD,), "until the end of the answer", stream=False, engine="", limits=Limits(first_token=0.5, total=0.6)),
    Case("a complete answer until close", "ok", (head("200 OK", JSON, version="HTTP/1.0"), compact(message("Hello there", "stop", tokens_used(4))).encode(), END, FIN), "RFC 9112 §6.3", stream=False, engine="", completion=4),
)
