"""Complete answers where no stream was requested."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import END, FIN, HOLD, RST, Case, Limits
from tests.wire.events import compact, good, message, tokens_used
from tests.wire.families import PNG, plain
from tests.wire.heads import CHUNKED, JSON, body, head, stream

# fmt: off
CASES = (
    plain("a chat completion", "ok", message("Hello there", "stop", tokens_used(4)), completion=4, finish="stop", tokens_after_first=None),
    plain("a chat completion without finish reason", "truncated", message("Hello there", None, tokens_used(4)), "ok only with a finish reason"),
    plain("a chat completion without content", "empty", message("", "stop", tokens_used(0)), "at least one content token"),
    plain("a chat completion of tool calls", "ok", message(None, "tool_calls", tokens_used(4), tool_calls=[{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]), "tool calls are content", completion=4),
    plain("a forced length that was not reached", "short", message("Hi", "stop", tokens_used(2)), "16 tokens were forced", engine="vllm", tokens=16),
    plain("no JSON", "malformed", "<html>busy</html>", "not JSON", detail="<html>"),
    plain("JSON that is no completion", "malformed", {"status": "ok"}, "no choices", detail="status"),
    Case("a completion with leading white space as keep-alive", "ok", stream(b"\n", 0.05, b"\n", 0.05, compact(message("Hello there", "stop", tokens_used(4))).encode(), head=head("200 OK", JSON, CHUNKED)), "DeepSeek and OpenRouter send empty lines; JSON ignores them", stream=False, engine="", completion=4),
    Case("a completion that is reset", "reset", (head("200 OK", JSON, "content-length: 400"), compact(message("Hello there", "stop", tokens_used(4))).encode()[:90], 0.02, RST), "reset", stream=False, engine=""),
    Case("an answer 0.6 s later, past the first-token limit, where none is streamed", "ok", (0.6, *body("200 OK", message("Hello there", "stop", tokens_used(4)))), "there is no first token to wait for", stream=False, engine="", limits=Limits(first_token=0.4, total=2.0)),
    plain("a chat completion with finish reason error", "error_in_stream|malformed|truncated", message("Hel", "error", tokens_used(1)), "a named failure", detail="error"),
    plain("a chat completion of hidden reasoning only", "ok", message(None, "length", tokens_used(4, completion_tokens_details={"reasoning_tokens": 4})), "the limit is the prober's", completion=4, detail="hidden reasoning used up the limit"),
    plain("a chat completion with marks of reasoning", "wrong_answer", message("<think>is it 42?</think>No", "stop", tokens_used(4)), "reasoning is no answer", engine="", golden="42"),
    plain("a chat completion of reasoning only", "ok", message(None, "length", tokens_used(4), reasoning_content="Hmm"), "reasoning is content", completion=4),
    plain("an error object with 200", "error_in_stream|malformed", {"error": {"message": "engine is asleep"}}, "an error object inside a 200", detail="engine is asleep"),
    plain("an empty list of choices", "malformed", {"id": "x", "choices": [], "usage": tokens_used(0)}, "no answer"),
    Case("a completion that is cut", "truncated", (head("200 OK", JSON, "content-length: 400"), compact(message("Hello there", "stop", tokens_used(4))).encode()[:90], 0.02, FIN), "RFC 9112 §8: incomplete", stream=False, engine=""),
    Case("silence where no stream was requested", "timeout_total", (HOLD,), "until the end of the answer", stream=False, engine="", limits=Limits(first_token=0.5, total=0.6)),
    Case("a complete answer until close", "ok", (head("200 OK", JSON, version="HTTP/1.0"), compact(message("Hello there", "stop", tokens_used(4))).encode(), END, FIN), "RFC 9112 §6.3", stream=False, engine="", completion=4),
    Case("an image where an answer in one piece was requested", "malformed", body("200 OK", PNG, "content-type: image/png"), "not JSON", stream=False, detail="expected application/json, got image/png: 'binary data: 89 50 4e 47"),
    Case("a stream where none was requested", "malformed", stream(*good()), "a server that always streams", stream=False, detail="expected application/json, got text/event-stream: 'data: {"),
)
