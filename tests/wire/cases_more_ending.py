"""The end of an answer: [DONE], what follows it, and what is missing. Held back."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import END, FIN, FIRST, HOLD, LAST, RST, Case
from tests.wire.events import DONE, ROLE, chat, content, end, good, sse, text, tokens_used, usage
from tests.wire.heads import LAST_CHUNK, chunk, sized, stream, unended, until_close

# fmt: off
CASES = (
    Case("[DONE], then keep-alive comments for ever", "ok", (*unended(*good()), *((0.05, chunk(b": keep-alive\n\n")) * 12), HOLD), "[DONE] ends the answer", chunks=4, completion=4),
    Case("[DONE] and the reset at once", "ok", (*unended(*good()), RST), "a reset after [DONE] costs nothing", chunks=4, completion=4),
    Case("[DONE], then fewer bytes than Content-Length", "ok", (*sized(*good(), extra=500), FIN), "a wrong Content-Length after [DONE] costs nothing", chunks=4, completion=4),
    Case("Content-Length that ends inside [DONE]'s blank line", "ok", sized(*good(), extra=-1), "the line is complete; the OpenAI client ends here", chunks=4, completion=4, arguable=True),
    Case("[DONE], then garbage instead of a chunk size", "ok", (*unended(*good()), b"garbage\r\n", FIN), "what follows [DONE] is not read", chunks=4),
    Case("[DONE], then an error", "ok", stream(*good(), sse({"error": {"message": "late failure"}})), "what follows [DONE] is not read", chunks=4, completion=4),
    Case("last chunk 0.4 s after [DONE]", "ok", (*unended(*good()), 0.4, LAST_CHUNK), "E2E is the time of [DONE]", chunks=4, completion=4),
    Case("[DONE] without a space", "ok", stream(*good(tail=b"data:[DONE]\n\n")), "WHATWG: one space is optional", chunks=4, completion=4),
    Case("[DONE] without any line end, then FIN", "ok", (*unended(*good(tail=b"data: [DONE]")), FIN), "the OpenAI client reads the last line at the end of the body", arguable=True),
    Case("[DONE] with CRLF", "ok", stream(*good(tail=b"data: [DONE]\r\n\r\n")), "line ends", chunks=4),
    Case("[done] in small letters", "malformed", stream(*good(tail=b"data: [done]\n\n")), "no client ends at it", arguable=True),
    Case("[DONE] and the JSON of a chunk on two data lines", "malformed", stream(*content(), end(), usage(4), b'data: {"choices":[]}\ndata: [DONE]\n\n'), "one event: neither JSON nor [DONE]", arguable=True),
    Case("SGLang without [DONE], FIN", "truncated", until_close(*good(tail=b"")), "SGLang always sends [DONE]", engine="sglang"),
    Case("transformers serve: no [DONE], usage beside the finish reason", "ok", stream(*content(), chat({}, "length", usage=tokens_used(4)), END), "it never sends [DONE]", engine="transformers", chunks=4, completion=4, finish="length"),
    Case("transformers serve: reset after the finish reason", "reset", (*unended(*content(), chat({}, "length", usage=tokens_used(4))), 0.05, RST), "no clean end", engine="transformers"),
    Case("transformers serve that does send [DONE]", "ok", stream(*content(), chat({}, "length", usage=tokens_used(4)), END, DONE), "a new release may; [DONE] ends any answer", engine="transformers", chunks=4),
    Case("[DONE] at once", "truncated", stream(DONE), "no content and no finish reason", arguable=True),
    Case("role only, then [DONE]", "truncated", stream(ROLE, DONE), "no content and no finish reason", arguable=True),
    Case("empty body", "truncated", stream(), "nothing at all", arguable=True),
    Case("comments only, then a clean end", "truncated", stream(b": keep-alive\n\n", b": keep-alive\n\n"), "nothing was generated", arguable=True),
    Case("finish reason on the last content chunk", "ok", stream(ROLE, 0.02, FIRST, text("a"), text("b"), text("c"), 0.02, LAST, chat({"content": "d"}, "length"), usage(4), END, DONE), "vLLM writes it so", chunks=4, completion=4, finish="length"),
    Case("usage before the finish reason", "ok", stream(*content(), usage(4), end(), END, DONE), "the order is not promised", chunks=4, completion=4),
)
