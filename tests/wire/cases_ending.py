"""The end of an answer: [DONE], what follows it, and what is missing."""

# ruff: noqa: E501 -- a table: one line a case

from tests.wire.case import END, FIN, HOLD, RST, Case, Limits
from tests.wire.events import DONE, ROLE, chat, content, end, good, text, tokens_used, usage
from tests.wire.heads import EVENTS, head, sized, stream, unended

# fmt: off
CASES = (
    Case("[DONE], then the connection stays open without a last chunk", "ok", (*unended(*good()), HOLD), "[DONE] ends the answer", chunks=4, completion=4),
    Case("[DONE], then a reset", "ok", (*unended(*good()), 0.02, RST), "a reset after [DONE] costs nothing", chunks=4, completion=4),
    Case("[DONE], then FIN without the last chunk", "ok", (*unended(*good()), FIN), "a FIN after [DONE] costs nothing", chunks=4, completion=4),
    Case("[DONE] with Content-Length too long, held open", "ok", (*sized(*good(), extra=500), HOLD), "a wrong Content-Length after [DONE] costs nothing", chunks=4, completion=4),
    Case("Content-Length that cuts [DONE] off", "truncated", sized(*good(), extra=-len(DONE)), "vLLM sends [DONE]; the body ended without it"),
    Case("[DONE], then more content", "ok", stream(*good(), text("more"), text("more")), "what follows [DONE] is not read", chunks=4, completion=4),
    Case("[DONE] twice", "ok", stream(*good(), DONE), "what follows [DONE] is not read", chunks=4, completion=4),
    Case("[DONE] with spaces around it", "ok", stream(*good(tail=b"data:   [DONE]  \n\n")), "white space around data is stripped", chunks=4, completion=4),
    Case("[DONE] without a blank line, connection held", "ok", (*unended(*good(tail=b"data: [DONE]\n")), HOLD), "the OpenAI client waits; the line is complete and nothing can follow", limits=Limits(stall=0.5, total=1.0), arguable=True),
    Case("[DONE] with a comment in front, in one write", "ok", stream(*good(tail=b": done\n\ndata: [DONE]\n\n")), "comments are ignored", chunks=4),
    Case("[DONE] split over two writes", "ok", stream(*content(), end(), usage(4), b"data: [DO", 0.02, END, b"NE]\n\n"), "TCP has no message bounds", chunks=4),
    Case('"[DONE]" as a JSON string', "malformed", stream(*good(tail=b'data: "[DONE]"\n\n')), "some gateways encode it", arguable=True),
    Case("vLLM without [DONE], clean end", "truncated", stream(*good(tail=b"")), "vLLM always sends [DONE]"),
    Case("an unknown engine without [DONE], clean end", "truncated", stream(*good(tail=b"")), "a clean end after a finish reason; but this engine is not known for it", engine="", arguable=True),
    Case("transformers serve: FIN instead of the last chunk", "truncated", (*unended(*content(), chat({}, "length", usage=tokens_used(4))), FIN), "RFC 9112 §8: the body is incomplete", engine="transformers", arguable=True),
    Case("transformers serve: held open after the finish reason", "timeout_stall", (*unended(*content(), chat({}, "length", usage=tokens_used(4))), HOLD), "no end at all", engine="transformers", limits=Limits(stall=0.4, total=0.9)),
    Case("[DONE] without a finish reason", "truncated", stream(*content(), usage(4), DONE), "ok only with a finish reason"),
    Case("clean end without finish reason", "truncated", stream(*content()), "truncated: clean end without finish reason"),
    Case("finish reason and [DONE] without content", "empty", stream(ROLE, end("stop"), usage(0), DONE), "at least one content token", engine=""),
    Case("empty body with Content-Length 0", "truncated", (head("200 OK", EVENTS, "Content-Length: 0"),), "nothing at all", arguable=True),
    Case("finish reason twice", "ok", stream(*content(), end(), end(), usage(4), END, DONE), "one reason, repeated", chunks=4, completion=4),
    Case("content after the finish reason", "ok", stream(*content(3), end(), text("d"), usage(4), DONE), "no client stops at the finish reason", arguable=True),
)
