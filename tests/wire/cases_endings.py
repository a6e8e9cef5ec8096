"""Ends of an answer, and connections that are closed or reset at every place."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import END, FIN, FIRST, HOLD, LAST, RST, Case, Limits
from tests.wire.events import DONE, ROLE, chat, content, end, good, sse, text, tokens_used, usage
from tests.wire.heads import JSON, LAST_CHUNK, UNTIL_CLOSE, head, sized, stream, unended, until_close

# fmt: off
CASES = (
    Case("[DONE], then the connection stays open without a last chunk", "ok", (*unended(*good()), HOLD), "[DONE] ends the answer", chunks=4, completion=4),
    Case("[DONE], then a reset", "ok", (*unended(*good()), 0.02, RST), "a reset after [DONE] costs nothing", chunks=4, completion=4),
    Case("Content-Length that cuts [DONE] off", "truncated", sized(*good(), extra=-len(DONE)), "vLLM sends [DONE]; the body ended without it"),
    Case("[DONE], then more content", "ok", stream(*good(), text("more"), text("more")), "what follows [DONE] is not read", chunks=4, completion=4),
    Case("[DONE] with spaces around it", "ok", stream(*good(tail=b"data:   [DONE]  \n\n")), "white space around data is stripped", chunks=4, completion=4),
    Case("[DONE] without a blank line, connection held", "ok", (*unended(*good(tail=b"data: [DONE]\n")), HOLD), "the OpenAI client waits; the line is complete and nothing can follow", limits=Limits(stall=0.5, total=1.0)),
    Case("[DONE] split over two writes", "ok", stream(*content(), end(), usage(4), b"data: [DO", 0.02, END, b"NE]\n\n"), "TCP has no message bounds", chunks=4),
    Case('"[DONE]" as a JSON string', "truncated", stream(*good(tail=b'data: "[DONE]"\n\n')), "no client ends at it"),
    Case("vLLM without [DONE], clean end", "truncated", stream(*good(tail=b"")), "vLLM always sends [DONE]"),
    Case("an unknown engine without [DONE], clean end", "truncated", stream(*good(tail=b"")), "a clean end after a finish reason; but this engine is not known for it", engine=""),
    Case("transformers serve: FIN instead of the last chunk", "truncated", (*unended(*content(), chat({}, "length", usage=tokens_used(4))), FIN), "RFC 9112 §8: the body is incomplete", engine="transformers"),
    Case("transformers serve: held open after the finish reason", "timeout_stall", (*unended(*content(), chat({}, "length", usage=tokens_used(4))), HOLD), "no end at all", engine="transformers", limits=Limits(stall=0.4, total=0.9)),
    Case("[DONE] without a finish reason", "truncated", stream(*content(), usage(4), DONE), "ok only with a finish reason"),
    Case("finish reason and [DONE] without content", "empty", stream(ROLE, end("stop"), usage(0), DONE), "at least one content token", engine=""),
    Case("finish reason twice", "ok", stream(*content(), end(), end(), usage(4), END, DONE), "one reason, repeated", chunks=4, completion=4),
    Case("content after the finish reason", "ok", stream(*content(3), end(), text("d"), usage(4), DONE), "no client stops at the finish reason"),
    Case("Content-Length that ends inside [DONE]'s blank line", "ok", sized(*good(), extra=-1), "the line is complete; the OpenAI client ends here", chunks=4, completion=4),
    Case("[DONE], then an error", "ok", stream(*good(), sse({"error": {"message": "late failure"}})), "what follows [DONE] is not read", chunks=4, completion=4),
    Case("last chunk 0.4 s after [DONE]", "ok", (*unended(*good()), 0.4, LAST_CHUNK), "E2E is the time of [DONE]", chunks=4, completion=4),
    Case("[DONE] without any line end, then FIN", "ok", (*unended(*good(tail=b"data: [DONE]")), FIN), "the OpenAI client reads the last line at the end of the body"),
    Case("[done] in small letters", "malformed", stream(*good(tail=b"data: [done]\n\n")), "no client ends at it"),
    Case("[DONE] and the JSON of a chunk on two data lines", "malformed", stream(*content(), end(), usage(4), b'data: {"choices":[]}\ndata: [DONE]\n\n'), "one event: neither JSON nor [DONE]"),
    Case("transformers serve: no [DONE], usage beside the finish reason", "ok", stream(*content(), chat({}, "length", usage=tokens_used(4)), END), "it never sends [DONE]", engine="transformers", chunks=4, completion=4, finish="length"),
    Case("transformers serve: reset after the finish reason", "reset", (*unended(*content(), chat({}, "length", usage=tokens_used(4))), 0.05, RST), "no clean end", engine="transformers"),
    Case("transformers serve that does send [DONE]", "ok", stream(*content(), chat({}, "length", usage=tokens_used(4)), END, DONE), "a new release may; [DONE] ends any answer", engine="transformers", chunks=4),
    Case("role only, then [DONE]", "truncated", stream(ROLE, DONE), "no content and no finish reason"),
    Case("empty body", "truncated", stream(), "nothing at all"),
    Case("comments only, then a clean end", "truncated", stream(b": keep-alive\n\n", b": keep-alive\n\n"), "nothing was generated"),
    Case("finish reason on the last content chunk", "ok", stream(ROLE, 0.02, FIRST, text("a"), text("b"), text("c"), 0.02, LAST, chat({"content": "d"}, "length"), usage(4), END, DONE), "vLLM writes it so", chunks=4, completion=4, finish="length"),
    Case("reset before the answer", "reset", (RST,), "reset"),
    Case("closed inside the status line", "truncated", (b"HTTP/1.1 20", 0.02, FIN), "clean end, no answer"),
    Case("reset inside the head", "reset", (b"HTTP/1.1 200 OK\r\ncontent-ty", 0.02, RST), "reset"),
    Case("last chunk between two content chunks", "truncated", stream(*content(2)), "clean end without finish reason", chunks=2),
    Case("reset between two content chunks", "reset", (*unended(*content(2)), 0.02, RST), "reset", chunks=2),
    Case("closed inside a UTF-8 character", "truncated", (*unended(*content(2)), b"ff\r\n" + text("日").split("日".encode())[0] + b"\xe6", 0.02, FIN), "clean end without finish reason", chunks=2),
    Case("reset inside a JSON text", "reset", (UNTIL_CLOSE, *content(2), b'data: {"choices":[{"index":0,"delta":{"cont', 0.02, RST), "reset", chunks=2),
    Case("reset after the finish reason, before [DONE]", "reset", (*unended(*content(), end()), 0.02, RST), "reset", chunks=4),
    Case("closed after one token of a forced length", "truncated", (*unended(*content(1)), FIN), "truncated before short", chunks=1),
    Case("closed inside a 503's body", "http_5xx", (head("503 Service Unavailable", JSON, "content-length: 300"), b'{"error":{"message":"no healthy upstream', 0.02, FIN), "the status was clear before the end", detail="no healthy upstream"),
    Case("closed before the answer", "reset", (FIN,), "no byte of an answer; RFC 9112 §8"),
    Case("closed behind the role chunk", "truncated", (*unended(ROLE), 0.02, FIN), "clean end without finish reason"),
    Case("closed between two content chunks", "truncated", (*unended(*content(2)), 0.02, FIN), "clean end without finish reason", chunks=2),
    Case("closed inside a chunk-size line", "truncated", (*unended(*content(2)), b"1", 0.02, FIN), "clean end without finish reason", chunks=2),
    Case("Content-Length not reached in mid-answer", "truncated", (*sized(*content(2), extra=400), 0.02, FIN), "RFC 9112 §8: incomplete", chunks=2),
    Case("closed inside [DONE]", "truncated", until_close(*content(), end(), usage(4), b"data: [DO", 0.02), "[DONE] did not come"),
    Case("reset after a 500's head", "http_5xx", (head("500 Internal Server Error", JSON, "content-length: 100"), b'{"error"', 0.02, RST), "the status was clear before the reset"),
    Case("head only of a 429, held open", "http_429", (head("429 Too Many Requests", JSON, "content-length: 300", "retry-after: 1"), HOLD), "the status is the verdict", limits=Limits(first_token=0.5, total=0.8)),
)
