"""Answers that are not streamed (`stream: false`)."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import RST, Case, Limits
from tests.wire.events import compact, good, message, tokens_used
from tests.wire.families import plain
from tests.wire.heads import CHUNKED, JSON, body, head, stream

# fmt: off
CASES = (
    plain("a chat completion", "ok", message("Hello there", "stop", tokens_used(4)), completion=4, finish="stop", tokens_after_first=None),
    plain("a chat completion without finish reason", "truncated", message("Hello there", None, tokens_used(4)), "ok only with a finish reason"),
    plain("a chat completion without content", "empty", message("", "stop", tokens_used(0)), "at least one content token"),
    plain("a chat completion of tool calls", "ok", message(None, "tool_calls", tokens_used(4), tool_calls=[{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]), "tool calls are content", completion=4),
    plain("a forced length that was not reached", "short", message("Hi", "stop", tokens_used(2)), "16 tokens were forced", engine="vllm", tokens=16),
    plain("no JSON", "malformed", "<html>busy</html>", "not JSON", detail="<html>"),
    plain("JSON that is no completion", "malformed", {"status": "ok"}, "no choices", detail="status", arguable=True),
    plain("usage in floats", "ok", message("Hello", "stop", tokens_used(4.0)), "JSON knows one kind of number", completion=(4, None)),
    Case("a stream where none was requested", "malformed", stream(*good()), "a server that always streams", stream=False, arguable=True),
    Case("a completion with leading white space as keep-alive", "ok", stream(b"\n", 0.05, b"\n", 0.05, compact(message("Hello there", "stop", tokens_used(4))).encode(), head=head("200 OK", JSON, CHUNKED)), "DeepSeek and OpenRouter send empty lines; JSON ignores them", stream=False, engine="", completion=4),
    Case("a completion that is reset", "reset", (head("200 OK", JSON, "content-length: 400"), compact(message("Hello there", "stop", tokens_used(4))).encode()[:90], 0.02, RST), "reset", stream=False, engine=""),
    Case("an answer 0.6 s later, past the first-token limit, where none is streamed", "ok", (0.6, *body("200 OK", message("Hello there", "stop", tokens_used(4)))), "there is no first token to wait for", stream=False, engine="", limits=Limits(first_token=0.4, total=2.0), arguable=True),
)
